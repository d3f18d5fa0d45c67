// Host side of the fp32 kernels: the parts of q, k and v, then their products. One kernel a unit: shaped
// scores take a branch of it.
#ifndef TILEWISE_CUDA_SM80_FORWARD_F32_LAUNCH_H_
#define TILEWISE_CUDA_SM80_FORWARD_F32_LAUNCH_H_

#include "cuda/sm80/f32_parts_launch.cuh"
#include "cuda/sm80/forward_f32.cuh"
#include "cuda/sm80/forward_launch.cuh"

namespace tilewise::sm80 {

template <typename C>
cudaError_t launch_f32(const ForwardParams& p, const cuda::Call& call) {
  static_assert(sizeof(F32Shared<C>) <= kMostShared);
  F32Args args;
  static_cast<ForwardArgs&>(args) = make_args(p, C::kTileM);
  if (args.shaped) args.scale_log2 = kLog2E;
  if (args.order.total == 0) return cudaSuccess;
  PartsArgs<3> parts;
  const cudaError_t error =
      launch_parts<C::kDim, Low::scaled>(p, nullptr, static_cast<uint8_t*>(call.scratch), parts, call.stream);
  if (error != cudaSuccess) return error;
  args.q = parts.of[0].parts;
  args.k = parts.of[1].parts;
  args.v = parts.of[2].parts;
  return cuda::launch_shared(forward_f32<C>, args.order.total, C::kThreads, sizeof(F32Shared<C>), call.stream,
                             args);
}

// 0 bytes: asking loads the kernel.
template <typename C>
cudaError_t prepare_f32() {
  const cudaError_t error = cuda::allow_shared(make_parts<C::kDim, 3, Low::scaled>, 0);
  return error == cudaSuccess ? cuda::allow_shared(forward_f32<C>, sizeof(F32Shared<C>)) : error;
}

}  // namespace tilewise::sm80

#define TILEWISE_SM80_FORWARD_F32(name, dim, fragments, keys, blocks)                \
  namespace tilewise::cuda {                                                         \
  cudaError_t name(const ForwardParams& p, const Call& call) {                       \
    return sm80::launch_f32<sm80::F32Config<dim, fragments, keys, blocks>>(p, call); \
  }                                                                                  \
  cudaError_t name##_prepare(const tilewise_problem&) {                              \
    return sm80::prepare_f32<sm80::F32Config<dim, fragments, keys, blocks>>();       \
  }                                                                                  \
  const char* name##_refuses(const ForwardParams&) { return nullptr; }               \
  }

#endif  // TILEWISE_CUDA_SM80_FORWARD_F32_LAUNCH_H_
