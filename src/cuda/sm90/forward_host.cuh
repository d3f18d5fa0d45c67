// What the hosts of the forward kernels share: the strides that no copy engine takes, and a launch's
// arguments.
#ifndef TILEWISE_CUDA_SM90_FORWARD_HOST_H_
#define TILEWISE_CUDA_SM90_FORWARD_HOST_H_

#include "core/softmax.h"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/sm90/tensor_map.h"
#include "cuda/tile/wide.h"

namespace tilewise::sm90 {

// The planner's rules (cuda/rules.cpp) have looked at everything but a call's strides.
inline const char* forward_refuses(const ForwardParams& p) {
  if (const char* rule = tensor_map_refuses(p.q, extent_q(p, p.head_dim))) return rule;
  if (const char* rule = tensor_map_refuses(p.k, extent_kv(p, p.head_dim))) return rule;
  return tensor_map_refuses(p.v, extent_kv(p, p.head_dim_v));
}

// Of a kernel with the constants C. Without any work, order.total 0, there may be nothing to map.
template <typename C>
cudaError_t make_args(const ForwardParams& p, ForwardArgs* args) {
  args->params = p;
  args->order = tile::order_of(p, C::kTileM);
  if (args->order.total == 0) return cudaSuccess;
  args->pieces = tile::Pieces(p, args->order);
  args->queries_per_key_head = static_cast<int32_t>(p.group());
  args->key_heads = tile::FastDivide(p.group());
  args->scale_log2 = C::kShaped ? kLog2E : p.scale * kLog2E;
  args->wide_stores = tile::stores_wide(p.o, p.head_dim_v);
  cudaError_t error = encode_tensor_map(args->q, p.q, extent_q(p, p.head_dim), 64);
  if (error == cudaSuccess) error = encode_tensor_map(args->k, p.k, extent_kv(p, p.head_dim), C::kTileN);
  if (error == cudaSuccess) error = encode_tensor_map(args->v, p.v, extent_kv(p, p.head_dim_v), C::kTileN);
  // The copy engine ends where the tensor does, not where a packed sequence does, and at multiples of 16
  // bytes.
  args->bulk_stores = args->wide_stores && !p.cu_seqlens_q.data &&
                      tensor_map_refuses(p.o, extent_q(p, p.head_dim_v)) == nullptr;
  if (error == cudaSuccess && args->bulk_stores)
    error = encode_tensor_map(args->o, p.o, extent_q(p, p.head_dim_v), 16);
  return error;
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_HOST_H_
