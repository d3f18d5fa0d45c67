// Encodes the copy engine's view of a [batch, row, head, dim] tensor of 16-bit elements.
#ifndef TILEWISE_CUDA_SM90_TENSOR_MAP_H_
#define TILEWISE_CUDA_SM90_TENSOR_MAP_H_

#include <cuda_runtime.h>

#include "cuda/sm90/forward_args.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

struct TensorExtent {
  int64_t batch, rows, heads, head_dim;
};

inline TensorExtent extent_q(const ForwardParams& p, int64_t head_dim) {
  return {p.batch, p.cu_seqlens_q.data ? p.total_q : p.seqlen_q, p.heads_q, head_dim};
}
inline TensorExtent extent_kv(const ForwardParams& p, int64_t head_dim) {
  return {p.batch, p.cu_seqlens_kv.data ? p.total_kv : p.seqlen_kv, p.heads_kv, head_dim};
}

// The rule that keeps the copy engine from reading the tensor, or null. A repeated batch or head is fine.
const char* tensor_map_refuses(const RowTensor& tensor, const TensorExtent& extent);

// Boxes of box_rows x 64 columns, 128-byte swizzle. Columns and rows outside read as zeros.
cudaError_t encode_tensor_map(TileSource& source, const RowTensor& tensor, const TensorExtent& extent,
                              int box_rows);

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_TENSOR_MAP_H_
