// Host side of the parts of fp32 tensors: where they lie in scratch, and the kernel that writes them.
#ifndef TILEWISE_CUDA_SM80_F32_PARTS_LAUNCH_H_
#define TILEWISE_CUDA_SM80_F32_PARTS_LAUNCH_H_

#include "cuda/f32_sizes.h"
#include "cuda/sm80/forward_f32_parts.cuh"
#include "cuda/tile/wide.h"

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

// q, k and v, and with a fourth tensor dO.
template <int kDim, Low kLow, int kTensors>
cudaError_t launch_parts(const ForwardParams& p, const RowTensor* dout, uint8_t* scratch,
                         PartsArgs<kTensors>& parts, cudaStream_t stream) {
  const bool packed_q = p.cu_seqlens_q.data != nullptr, packed_kv = p.cu_seqlens_kv.data != nullptr;
  const int64_t rows_q = packed_q ? p.total_q : p.batch * p.seqlen_q;
  const int64_t rows_kv = packed_kv ? p.total_kv : p.batch * p.seqlen_kv;
  const int64_t of_q = packed_q ? 0 : p.seqlen_q, of_kv = packed_kv ? 0 : p.seqlen_kv;
  parts.of[0] = place_parts(p.q, rows_q, of_q, p.heads_q, p.head_dim, kDim, &scratch);
  parts.of[1] = place_parts(p.k, rows_kv, of_kv, p.heads_kv, p.head_dim, kDim, &scratch);
  parts.of[2] = place_parts(p.v, rows_kv, of_kv, p.heads_kv, p.head_dim_v, kDim, &scratch);
  if constexpr (kTensors == 4)
    parts.of[3] = place_parts(*dout, rows_q, of_q, p.heads_q, p.head_dim_v, kDim, &scratch);
  parts.first[0] = 0;
  for (int i = 0; i < kTensors; ++i)
    parts.first[i + 1] = parts.first[i] + parts.of[i].parts.rows * parts.of[i].heads;
  constexpr int kRows = kPartsThreads / (kDim / 8);
  const int64_t blocks = (parts.first[kTensors] + kRows - 1) / kRows;
  if (blocks == 0) return cudaSuccess;
  make_parts<kDim, kTensors, kLow><<<static_cast<unsigned>(blocks), kPartsThreads, 0, stream>>>(parts);
  return cudaGetLastError();
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_F32_PARTS_LAUNCH_H_
