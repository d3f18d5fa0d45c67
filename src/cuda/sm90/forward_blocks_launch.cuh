// Host side of a forward kernel of small blocks: preparing it for a device, launching it.
#ifndef TILEWISE_CUDA_SM90_FORWARD_BLOCKS_LAUNCH_H_
#define TILEWISE_CUDA_SM90_FORWARD_BLOCKS_LAUNCH_H_

#include "cuda/call.h"
#include "cuda/sm90/forward_blocks.cuh"
#include "cuda/sm90/forward_host.cuh"
#include "cuda/support/launch.cuh"

namespace tilewise::sm90 {

template <typename C>
cudaError_t launch_by_blocks(const ForwardParams& p, cudaStream_t stream) {
  ForwardArgs args;
  const cudaError_t error = make_args<C>(p, &args);
  if (error != cudaSuccess || args.order.total == 0) return error;
  return cuda::launch_early(forward_by_blocks<C>, args.order.total, C::kThreads, sizeof(BlockShared<C>),
                            stream, args);
}

// A row of the table: the kernel for plain scores and the one for shaped ones.
template <typename T, int kGroups, bool kShares, int... kSizes>
struct BlockRow {
  using Plain = BlockConfig<T, kGroups, kShares, kSizes...>;
  using Shaped = BlockConfig<T, kGroups, kShares, kSizes..., true>;

  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    return tile::is_shaped(p) ? launch_by_blocks<Shaped>(p, call.stream)
                              : launch_by_blocks<Plain>(p, call.stream);
  }
  static cudaError_t prepare() {
    const cudaError_t error = cuda::allow_shared(forward_by_blocks<Plain>, sizeof(BlockShared<Plain>));
    return error == cudaSuccess ? cuda::allow_shared(forward_by_blocks<Shaped>, sizeof(BlockShared<Shaped>))
                                : error;
  }
};

}  // namespace tilewise::sm90

// After the name: element, warpgroups, whether they share the queries, keys of a tile, stages, blocks.
#define TILEWISE_SM90_FORWARD_BLOCKS(name, ...)                                                          \
  namespace tilewise::cuda {                                                                             \
  cudaError_t name(const ForwardParams& p, const Call& call) {                                           \
    return sm90::BlockRow<__VA_ARGS__>::launch(p, call);                                                 \
  }                                                                                                      \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm90::BlockRow<__VA_ARGS__>::prepare(); } \
  const char* name##_refuses(const ForwardParams& p) { return sm90::forward_refuses(p); }                \
  }

#endif  // TILEWISE_CUDA_SM90_FORWARD_BLOCKS_LAUNCH_H_
