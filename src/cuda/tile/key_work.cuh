// One unit of backward work: a tile of keys of one key head, and the queries that see some of them. From
// core/mask.h's definition of a sequence and its band, like Work (work.cuh).
#ifndef TILEWISE_CUDA_TILE_KEY_WORK_H_
#define TILEWISE_CUDA_TILE_KEY_WORK_H_

#include "cuda/tile/work.cuh"

namespace tilewise::tile {

// Aligned so that fields are read two at a time.
struct alignas(16) KeyWork : SequenceBand {  // head: of keys
  int32_t key;                               // first key of the tile, within the sequence
  int32_t rows_kv;                           // rows of dk and dv to write
  int32_t scratch_row;            // of the sequence's first query, for the first query head, in scratch
  int32_t see_first, see_last;    // keys that some query of the sequence sees
  int32_t row_first, row_last;    // queries that see some key of the tile
  int32_t tile_first, tile_last;  // query tiles that hold them
  int32_t full_first, full_last;  // among these: every query sees every key
  int32_t tile_step;              // 1: query tiles are walked from the first to the last, -1: back

  // Queries that see a key.
  __device__ __forceinline__ int first_row(int j) const { return j - hi_shift + 1; }
  __device__ __forceinline__ int last_row(int j) const {
    return j >= kv_first && j < kv_last ? min(len_q, j - lo_shift + 1) : -kFar;
  }
  // Key tiles before this one that see queries of tile `tile`, which this one sees too. Their last key is
  // seen by the tile's first row, if by any.
  template <int kTileM, int kTileN>
  __device__ __forceinline__ int tiles_before(int tile) const {
    return key / kTileN - max(kv_first, tile * kTileM + lo_shift) / kTileN;
  }
  __device__ __forceinline__ bool is_full(int tile) const { return tile >= full_first && tile < full_last; }
};

// `value` / `by`, at least 0.
__device__ __forceinline__ int tiles_down(int value, int by) { return max(value, 0) / by; }
__device__ __forceinline__ int tiles_up(int value, int by) { return (max(value, 0) + by - 1) / by; }

// False where the sequence has no such keys.
template <int kTileM, int kTileN>
__device__ __forceinline__ bool make_key_work(KeyWork& w, const ForwardParams& p, int batch, int head,
                                              int tile_key) {
  const Sequence s = sequence_of(p, batch);
  w.key = tile_key * kTileN;
  w.rows_kv = static_cast<int32_t>(s.rows_kv);
  if (w.key >= w.rows_kv) return false;
  w.take(p, s, batch, head);
  w.see_first = max(w.kv_first, w.lo_shift);
  w.see_last = min(w.kv_last, w.len_q - 1 + w.hi_shift);
  // The first and the last existing key of the tile bound the queries.
  const int first = max(w.key, w.kv_first), last = min(w.key + kTileN, w.kv_last) - 1;
  w.row_first = max(0, w.first_row(first));
  w.row_last = last < first ? 0 : w.last_row(last);
  if (w.row_last <= w.row_first) {
    w.row_first = w.row_last = w.tile_first = w.tile_last = w.full_first = w.full_last = 0;
    return true;
  }
  w.tile_first = w.row_first / kTileM;
  w.tile_last = tiles_up(w.row_last, kTileM);
  const bool whole = first == w.key && last == w.key + kTileN - 1;
  w.full_first = tiles_up(w.first_row(last), kTileM);
  w.full_last = whole ? tiles_down(w.last_row(first), kTileM) : 0;
  return true;
}

// The query tiles of a piece of work, every query head's before the next; every role walks them alike. So
// key tiles that begin together stay together under a causal mask too, where each has fewer query tiles than
// the one before: head by head the shorter would be a head ahead of the longer, for nothing where they add in
// order, and with all heads' queries between two uses of the same ones. kDown: from the last to the first,
// which all but the first key tiles see, and the first ones are the longest and begin first.
template <bool kDown>
struct QueryWalk {
  int tile, head, left;  // head: of those of the key head; left: tiles after this one, of all heads

  __device__ __forceinline__ QueryWalk(const KeyWork& w, int heads)
      : tile(!kDown && w.tile_step > 0 ? w.tile_first : w.tile_last - 1),
        head(0),
        left(heads * (w.tile_last - w.tile_first) - 1) {}
  __device__ __forceinline__ void next(const KeyWork& w, int heads) {
    const int step = kDown ? -1 : w.tile_step;
    --left;
    ++head;
    tile += head == heads ? step : 0;
    head = head == heads ? 0 : head;
  }
};

// Removes the weights that band and lengths hide from the transposed fragment: rows are keys `key` and + 8,
// columns are queries from `row`.
template <int kCount>
__device__ __forceinline__ void hide_keys(float (&r_p)[kCount], const KeyWork& w, int row, int key,
                                          int lane_column) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int first = w.first_row(key + 8 * r) - row - lane_column;
    const int last = w.last_row(key + 8 * r) - row - lane_column;
#pragma unroll
    for (int i = 2 * r; i < kCount; i += 4) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = i / 4 * 8 + c;
        if (column >= last || column < first) r_p[i + c] = 0.0f;
      }
    }
  }
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_KEY_WORK_H_
