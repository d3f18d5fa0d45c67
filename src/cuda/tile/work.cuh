// One unit of forward work: a tile of queries of one head, and the keys that it sees. Keys come from
// core/mask.h's definition of a sequence and its band; kv_ranges, segments and dense masks are not of this
// score class.
#ifndef TILEWISE_CUDA_TILE_WORK_H_
#define TILEWISE_CUDA_TILE_WORK_H_

#include "core/mask.h"
#include "core/softmax.h"

namespace tilewise::tile {

// Larger than any row index, small enough for sums of two.
constexpr int32_t kFar = 1 << 30;

// What work of either direction knows of its sequence.
struct SequenceBand {
  int32_t batch, head;         // batch < 0: there is no more work
  int32_t q_begin, kv_begin;   // first row of the sequence in packed tensors
  int32_t len_q;               // queries that exist
  int32_t kv_first, kv_last;   // keys that exist
  int32_t lo_shift, hi_shift;  // query i sees keys [max(kv_first, i + lo_shift), min(kv_last, i + hi_shift))
  int32_t q_offset;            // for ALiBi: query i stands at i + q_offset,
  float beyond;                // or farther from every key by this, where q_offset was clamped

  __host__ __device__ __forceinline__ int lo(int i) const { return max(kv_first, i + lo_shift); }
  __host__ __device__ __forceinline__ int hi(int i) const { return min(kv_last, i + hi_shift); }

  __host__ __device__ __forceinline__ void take(const ForwardParams& p, const Sequence& s, int batch_of,
                                                int head_of) {
    batch = batch_of;
    head = head_of;
    q_begin = static_cast<int32_t>(s.q_begin);
    kv_begin = static_cast<int32_t>(s.kv_begin);
    len_q = static_cast<int32_t>(s.len_q);
    kv_first = static_cast<int32_t>(s.kv_first);
    kv_last = static_cast<int32_t>(s.kv_last);
    q_offset = static_cast<int32_t>(clamp_index(s.q_offset, -kFar, kFar));
    beyond = static_cast<float>(s.q_offset > q_offset ? s.q_offset - q_offset : q_offset - s.q_offset);
    lo_shift = p.window_left < 0 ? -kFar
                                 : static_cast<int32_t>(clamp_index(s.q_offset - p.window_left, -kFar, kFar));
    hi_shift = p.window_right < 0
                   ? kFar
                   : static_cast<int32_t>(clamp_index(s.q_offset + p.window_right + 1, -kFar, kFar));
  }
};

struct Work : SequenceBand {
  int32_t row;                    // first query of the tile, within the sequence
  int32_t rows_q;                 // rows of o to write
  int32_t see_first, see_last;    // keys that some row of the tile sees
  int32_t tile_first, tile_last;  // key tiles that hold them
  int32_t full_first, full_last;  // among these: every row sees every key

  // The lse of a row that sees no key. Rows past len_q are padding, which has no sink.
  __device__ __forceinline__ float empty_lse(const ForwardParams& p, int i) const {
    return p.sinks && i < len_q ? p.sinks[head * p.sinks_stride] : kNegativeInfinity;
  }
  // Of queries [from, from + rows): the keys and key tiles that they see.
  template <int kTileN>
  __device__ __forceinline__ void place(int from, int rows) {
    row = from;
    const int last_row = min(row + rows, len_q) - 1;
    see_first = lo(row);
    see_last = hi(last_row);
    if (last_row < row || see_last <= see_first) {
      tile_first = tile_last = full_first = full_last = 0;
      return;
    }
    tile_first = see_first / kTileN;
    tile_last = (see_last + kTileN - 1) / kTileN;
    full_first = (max(lo(last_row), 0) + kTileN - 1) / kTileN;
    full_last = max(hi(row), 0) / kTileN;
  }
  __device__ __forceinline__ bool is_full(int tile) const { return tile >= full_first && tile < full_last; }
};

// False where the sequence has no such rows.
template <int kTileM, int kTileN>
__device__ __forceinline__ bool make_work(Work& w, const ForwardParams& p, int batch, int head,
                                          int tile_row) {
  const Sequence s = sequence_of(p, batch);
  w.row = tile_row * kTileM;
  w.rows_q = static_cast<int32_t>(s.rows_q);
  if (w.row >= w.rows_q) return false;
  w.take(p, s, batch, head);
  w.place<kTileN>(w.row, kTileM);
  return true;
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_WORK_H_
