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

__device__ __forceinline__ DropoutRow dropout_row_of(const ForwardParams& p, const Work& w, int row) {
  uint64_t seed = p.dropout_seed, offset = p.dropout_offset;
  if (p.dropout_state) {
    seed = p.dropout_state[0];
    offset = p.dropout_state[p.dropout_state_stride];
  }
  return dropout_row(seed, offset, w.batch, w.head, row);
}

// Of one row.
struct GeneralPairs {
  const ForwardParams& p;
  const Work& w;
  int row;

  __device__ __forceinline__ bool sees(int key) const {
    if (!mask_allows(p.mask, w.batch, w.head, row, key)) return false;
    if (p.segment_ids_q.data && read_row_index(p.segment_ids_q, w.batch, w.q_begin, row) !=
                                    read_row_index(p.segment_ids_kv, w.batch, w.kv_begin, key))
      return false;
    return !p.bias.data || added(key) != kNegativeInfinity;
  }
  __device__ __forceinline__ float added(int key) const {
    if (!p.bias.data) return 0.0f;
    return cuda::load(p.bias.data, p.bias.dtype, bias_row(p, w, row) + key * p.bias.key_stride);
  }
  __device__ __forceinline__ float kept(int key) const {
    if (!p.dropout_threshold) return 1.0f;
    return dropout_keep(dropout_row_of(p, w, row), key, p.dropout_threshold)
               ? dropout_scale_of(p.dropout_threshold)
               : 0.0f;
  }
};

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_PAIRS_H_
