// What the score class general asks of one pair of a query and a key, besides the interval of keys that the
// query sees: the slow and complete answer, for tiles that are not covered by a fast path.
#ifndef TILEWISE_CUDA_TILE_PAIRS_H_
#define TILEWISE_CUDA_TILE_PAIRS_H_

#include "core/dropout.h"
#include "core/mask.h"
#include "cuda/support/element.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::tile {

// Every pair of the interval, nothing added: score class simple.
struct PlainPairs {
  __device__ __forceinline__ bool sees(int) const { return true; }
  __device__ __forceinline__ float added(int) const { return 0.0f; }
  __device__ __forceinline__ float kept(int) const { return 1.0f; }
};

__device__ __forceinline__ int64_t bias_row(const ForwardParams& p, const Work& w, int row) {
  return w.batch * p.bias.batch_stride + w.head * p.bias.head_stride + row * p.bias.row_stride;
}

// Of one row.
struct GeneralPairs {
  const ForwardParams& p;
  const Work& w;
  int row;

  __device__ __forceinline__ bool sees(int key) const {
    if (!pair_allowed(p, w.batch, w.head, w.q_begin, w.kv_begin, row, key)) return false;
    return !p.bias.data || added(key) != kNegativeInfinity;
  }
  __device__ __forceinline__ float added(int key) const {
    if (!p.bias.data) return 0.0f;
    return cuda::load(p.bias.data, p.bias.dtype, bias_row(p, w, row) + key * p.bias.key_stride);
  }
  __device__ __forceinline__ float kept(int key) const {
    if (!p.dropout_threshold) return 1.0f;
    return dropout_keep(dropout_row_of(p, w.batch, w.head, row), key, p.dropout_threshold)
               ? dropout_scale_of(p.dropout_threshold)
               : 0.0f;
  }
};

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_PAIRS_H_
