// Host side of the fp32 kernels: the parts of q, k and v, then their products. One kernel a unit: shaped
// scores take a branch of it.
#ifndef TILEWISE_CUDA_SM80_FORWARD_F32_LAUNCH_H_
#define TILEWISE_CUDA_SM80_FORWARD_F32_LAUNCH_H_

#include "cuda/f32_sizes.h"
#include "cuda/sm80/forward_f32.cuh"
#include "cuda/sm80/forward_launch.cuh"

namespace tilewise::sm80 {

// Places the parts of a tensor's rows at *scratch, and moves on.
inline PartsOf place_parts(const RowTensor& t, int64_t rows, int64_t of_sequence, int64_t heads,
                           int64_t columns, int dim, uint8_t** scratch) {
  PartsOf of;
  of.tensor = t;
  of.heads = heads;
  of.columns = static_cast<int32_t>(columns);
  of.wide = tile::is_wide(t);
  const int64_t all = rows * heads;
  of.parts.rows = rows;
  of.parts.of_sequence = of_sequence;
  of.parts.hi = reinterpret_cast<__half*>(*scratch);
  of.parts.lo = of.parts.hi + all * dim;
  of.parts.scales = reinterpret_cast<RowScale*>(of.parts.lo + all * dim);
  *scratch += cuda::f32_part_bytes(dim, all);
  return of;
}

template <int kDim>
cudaError_t launch_parts(const ForwardParams& p, uint8_t* scratch, PartsArgs& parts, cudaStream_t stream) {
  const bool packed_q = p.cu_seqlens_q.data != nullptr, packed_kv = p.cu_seqlens_kv.data != nullptr;
  const int64_t rows_q = packed_q ? p.total_q : p.batch * p.seqlen_q;
  const int64_t rows_kv = packed_kv ? p.total_kv : p.batch * p.seqlen_kv;
  const int64_t of_q = packed_q ? 0 : p.seqlen_q, of_kv = packed_kv ? 0 : p.seqlen_kv;
  parts.of[0] = place_parts(p.q, rows_q, of_q, p.heads_q, p.head_dim, kDim, &scratch);
  parts.of[1] = place_parts(p.k, rows_kv, of_kv, p.heads_kv, p.head_dim, kDim, &scratch);
  parts.of[2] = place_parts(p.v, rows_kv, of_kv, p.heads_kv, p.head_dim_v, kDim, &scratch);
  parts.first[0] = 0;
  for (int i = 0; i < 3; ++i)
    parts.first[i + 1] = parts.first[i] + parts.of[i].parts.rows * parts.of[i].heads;
  constexpr int kRows = kPartsThreads / (kDim / 8);
  const int64_t blocks = (parts.first[3] + kRows - 1) / kRows;
  if (blocks == 0) return cudaSuccess;
  make_parts<kDim><<<static_cast<unsigned>(blocks), kPartsThreads, 0, stream>>>(parts);
  return cudaGetLastError();
}

template <typename C>
cudaError_t launch_f32(const ForwardParams& p, const cuda::Call& call) {
  static_assert(sizeof(F32Shared<C>) <= kMostShared);
  F32Args args;
  static_cast<ForwardArgs&>(args) = make_args(p, C::kTileM);
  if (args.shaped) args.scale_log2 = kLog2E;
  if (args.order.total == 0) return cudaSuccess;
  PartsArgs parts;
  const cudaError_t error = launch_parts<C::kDim>(p, static_cast<uint8_t*>(call.scratch), parts, call.stream);
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
  const cudaError_t error = cuda::allow_shared(make_parts<C::kDim>, 0);
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
