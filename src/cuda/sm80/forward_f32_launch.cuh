// Host side of the fp32 kernels. One kernel a unit: shaped scores take a branch of it.
#ifndef TILEWISE_CUDA_SM80_FORWARD_F32_LAUNCH_H_
#define TILEWISE_CUDA_SM80_FORWARD_F32_LAUNCH_H_

#include "cuda/sm80/forward_f32.cuh"
#include "cuda/sm80/forward_launch.cuh"

namespace tilewise::sm80 {

template <typename C>
cudaError_t launch_f32(const ForwardParams& p, cudaStream_t stream) {
  static_assert(sizeof(F32Shared<C>) <= 99 * 1024, "what compute capability 8.6, 8.9 and 12.0 have");
  ForwardArgs args = make_args(p, C::kTileM);
  if (args.shaped) args.scale_log2 = kLog2E;
  if (args.order.total == 0) return cudaSuccess;
  return cuda::launch_shared(forward_f32<C>, args.order.total, C::kThreads, sizeof(F32Shared<C>), stream,
                             args);
}

template <typename C>
cudaError_t prepare_f32() {
  return cuda::allow_shared(forward_f32<C>, sizeof(F32Shared<C>));
}

}  // namespace tilewise::sm80

#define TILEWISE_SM80_FORWARD_F32(name, dim, blocks)                       \
  namespace tilewise::cuda {                                               \
  cudaError_t name(const ForwardParams& p, const Call& call) {             \
    return sm80::launch_f32<sm80::F32Config<dim, blocks>>(p, call.stream); \
  }                                                                        \
  cudaError_t name##_prepare(const tilewise_problem&) {                    \
    return sm80::prepare_f32<sm80::F32Config<dim, blocks>>();              \
  }                                                                        \
  const char* name##_refuses(const ForwardParams&) { return nullptr; }     \
  }

#endif  // TILEWISE_CUDA_SM80_FORWARD_F32_LAUNCH_H_
