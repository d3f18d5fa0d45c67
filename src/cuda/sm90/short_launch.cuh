// Host side of a forward kernel of small blocks: preparing it for a device, launching it.
#ifndef TILEWISE_CUDA_SM90_SHORT_LAUNCH_H_
#define TILEWISE_CUDA_SM90_SHORT_LAUNCH_H_

#include "cuda/call.h"
#include "cuda/sm90/short.cuh"
#include "cuda/sm90/tensor_map.h"
#include "cuda/support/launch.cuh"
#include "cuda/tile/wide.h"

namespace tilewise::sm90 {

template <typename C>
cudaError_t launch_short(const ForwardParams& p, cudaStream_t stream) {
  ForwardArgs args;
  args.params = p;
  args.order = tile::order_of(p, C::kTileM);
  if (args.order.total == 0) return cudaSuccess;
  args.queries_per_key_head = static_cast<int32_t>(p.group());
  args.scale_log2 = C::kShaped ? kLog2E : p.scale * kLog2E;
  args.wide_stores = tile::stores_wide(p.o, p.head_dim_v);
  cudaError_t error = encode_tensor_map(args.q, p.q, extent_q(p, p.head_dim), 64);
  if (error == cudaSuccess) error = encode_tensor_map(args.k, p.k, extent_kv(p, p.head_dim), C::kTileN);
  if (error == cudaSuccess) error = encode_tensor_map(args.v, p.v, extent_kv(p, p.head_dim_v), C::kTileN);
  if (error != cudaSuccess) return error;
  return cuda::launch_shared(short_forward<C>, args.order.total, C::kThreads, sizeof(ShortShared<C>), stream,
                             args);
}

// A row of the table: the kernel for plain scores and the one for shaped ones.
template <typename T, int... kSizes>
struct ShortRow {
  using Plain = ShortConfig<T, kSizes...>;
  using Shaped = ShortConfig<T, kSizes..., true>;

  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    return tile::is_shaped(p) ? launch_short<Shaped>(p, call.stream) : launch_short<Plain>(p, call.stream);
  }
  static cudaError_t prepare() {
    const cudaError_t error = cuda::allow_shared(short_forward<Plain>, sizeof(ShortShared<Plain>));
    return error == cudaSuccess ? cuda::allow_shared(short_forward<Shaped>, sizeof(ShortShared<Shaped>))
                                : error;
  }
  static const char* refuses(const ForwardParams& p) {
    if (const char* rule = tensor_map_refuses(p.q, extent_q(p, p.head_dim))) return rule;
    if (const char* rule = tensor_map_refuses(p.k, extent_kv(p, p.head_dim))) return rule;
    return tensor_map_refuses(p.v, extent_kv(p, p.head_dim_v));
  }
};

}  // namespace tilewise::sm90

// After the name: element, warpgroups, keys of a tile, stages, blocks.
#define TILEWISE_SM90_SHORT(name, ...)                                                                   \
  namespace tilewise::cuda {                                                                             \
  cudaError_t name(const ForwardParams& p, const Call& call) {                                           \
    return sm90::ShortRow<__VA_ARGS__>::launch(p, call);                                                 \
  }                                                                                                      \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm90::ShortRow<__VA_ARGS__>::prepare(); } \
  const char* name##_refuses(const ForwardParams& p) { return sm90::ShortRow<__VA_ARGS__>::refuses(p); } \
  }

#endif  // TILEWISE_CUDA_SM90_SHORT_LAUNCH_H_
