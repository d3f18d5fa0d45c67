// Host side of a forward kernel whose blocks go in pairs: preparing it for a device, launching it.
#ifndef TILEWISE_CUDA_SM90_PAIRED_LAUNCH_H_
#define TILEWISE_CUDA_SM90_PAIRED_LAUNCH_H_

#include "cuda/sm90/paired.cuh"
#include "cuda/sm90/tensor_map.h"
#include "cuda/support/launch.cuh"
#include "cuda/tile/wide.h"
#include "cuda/units.h"

namespace tilewise::sm90 {

template <typename C>
cudaError_t launch_paired(const ForwardParams& p, cudaStream_t stream) {
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
  return cuda::launch_shared(paired<C>, args.order.total, C::kThreads, sizeof(PairedShared<C>), stream, args);
}

// A row of the table: the kernel for plain scores and the one for shaped ones.
template <typename T>
struct PairedRow {
  using Plain = PairedConfig<T, 128>;
  using Shaped = PairedConfig<T, 128, true>;

  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    return tile::is_shaped(p) ? launch_paired<Shaped>(p, call.stream) : launch_paired<Plain>(p, call.stream);
  }
  static cudaError_t prepare() {
    const cudaError_t error = cuda::allow_shared(paired<Plain>, sizeof(PairedShared<Plain>));
    return error == cudaSuccess ? cuda::allow_shared(paired<Shaped>, sizeof(PairedShared<Shaped>)) : error;
  }
  static const char* refuses(const ForwardParams& p) {
    if (const char* rule = tensor_map_refuses(p.q, extent_q(p, p.head_dim))) return rule;
    if (const char* rule = tensor_map_refuses(p.k, extent_kv(p, p.head_dim))) return rule;
    return tensor_map_refuses(p.v, extent_kv(p, p.head_dim_v));
  }
};

}  // namespace tilewise::sm90

#define TILEWISE_SM90_PAIRED(name, type)                                                                        \
  namespace tilewise::cuda {                                                                                    \
  cudaError_t name(const ForwardParams& p, const Call& call) { return sm90::PairedRow<type>::launch(p, call); } \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm90::PairedRow<type>::prepare(); }              \
  const char* name##_refuses(const ForwardParams& p) { return sm90::PairedRow<type>::refuses(p); }              \
  }

#endif  // TILEWISE_CUDA_SM90_PAIRED_LAUNCH_H_
