// The mask walk: which keys a row may see, and which tiles a kernel skips, runs plain, or runs with an
// element test.
//
// Band, lengths and kv_ranges give each row ONE interval of keys [lo, hi): `visible_keys`. A tile of rows is
// summed up by `TileBounds` (min and max of lo and hi), which classifies any key tile by integer comparisons,
// in either walk direction: keys of a query tile (forward), queries of a key tile (backward). Segment ids are
// added by `SegmentBounds`. A dense mask never decides a tile: it only makes tiles partial.
#ifndef TILEWISE_CORE_MASK_H_
#define TILEWISE_CORE_MASK_H_

#include <cstdint>

#include "core/hd.h"
#include "core/params.h"

namespace tilewise {

struct Interval {
  int64_t lo = 0, hi = 0;  // half open; empty where hi <= lo
};

TILEWISE_HD inline int64_t clamp_index(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : (value > high ? high : value);
}

TILEWISE_HD inline int64_t read_index(const IndexTensor& t, int64_t b, int64_t row = 0, int64_t inner = 0) {
  const int64_t at = b * t.batch_stride + row * t.row_stride + inner * t.inner_stride;
  return t.dtype == DType::i64 ? static_cast<const int64_t*>(t.data)[at]
                               : static_cast<const int32_t*>(t.data)[at];
}

// One sequence of the batch, every length clamped to what the tensors hold.
struct Sequence {
  int64_t q_begin = 0, kv_begin = 0;  // first row in the tensors (packed), else 0
  int64_t rows_q = 0;                 // rows of o that the call owns
  int64_t len_q = 0;                  // rows that are real queries; rows [len_q, rows_q) are padding
  int64_t rows_kv = 0;                // rows of k that the call owns (gradients)
  int64_t kv_first = 0, kv_last = 0;  // keys that exist: [kv_starts, kv_lengths)
  int64_t q_offset = 0;               // query i stands at i + q_offset
};

TILEWISE_HD inline Sequence sequence_of(const ForwardParams& p, int64_t b) {
  Sequence s;
  s.rows_q = p.seqlen_q;
  s.rows_kv = p.seqlen_kv;
  if (p.cu_seqlens_q.data) {
    s.q_begin = clamp_index(read_index(p.cu_seqlens_q, b), 0, p.total_q);
    s.rows_q = clamp_index(read_index(p.cu_seqlens_q, b + 1), s.q_begin, p.total_q) - s.q_begin;
  }
  if (p.cu_seqlens_kv.data) {
    s.kv_begin = clamp_index(read_index(p.cu_seqlens_kv, b), 0, p.total_kv);
    s.rows_kv = clamp_index(read_index(p.cu_seqlens_kv, b + 1), s.kv_begin, p.total_kv) - s.kv_begin;
  }
  s.len_q = p.q_lengths.data ? clamp_index(read_index(p.q_lengths, b), 0, s.rows_q) : s.rows_q;
  s.kv_last = p.kv_lengths.data ? clamp_index(read_index(p.kv_lengths, b), 0, s.rows_kv) : s.rows_kv;
  s.kv_first = p.kv_starts.data ? clamp_index(read_index(p.kv_starts, b), 0, s.kv_last) : 0;
  switch (p.position) {
    case TILEWISE_BOTTOM_RIGHT:
      s.q_offset = s.kv_last - s.len_q;
      break;
    case TILEWISE_TOP_LEFT:
      s.q_offset = 0;
      break;
    case TILEWISE_GIVEN:
      s.q_offset = p.q_offset.data ? read_index(p.q_offset, b) : p.q_offset_value;
      break;
  }
  return s;
}

// Row of a per-row tensor that is [batch, row] or, packed, [total rows].
TILEWISE_HD inline int64_t read_row_index(const IndexTensor& t, int64_t b, int64_t begin, int64_t row,
                                          int64_t inner = 0) {
  return read_index(t, t.batch_stride ? b : 0, begin + row, inner);
}

// Keys that query i may see by band, lengths and kv_ranges. Padding rows see none.
TILEWISE_HD inline Interval visible_keys(const ForwardParams& p, const Sequence& s, int64_t b, int64_t i) {
  if (i >= s.len_q) return {};
  Interval keys{s.kv_first, s.kv_last};
  const int64_t position = i + s.q_offset;
  if (p.window_left >= 0 && position - p.window_left > keys.lo) keys.lo = position - p.window_left;
  if (p.window_right >= 0 && position + p.window_right + 1 < keys.hi) keys.hi = position + p.window_right + 1;
  if (p.kv_ranges.data) {
    const int64_t first = read_row_index(p.kv_ranges, b, s.q_begin, i, 0);
    const int64_t last = read_row_index(p.kv_ranges, b, s.q_begin, i, 1);
    if (first > keys.lo) keys.lo = first;
    if (last < keys.hi) keys.hi = last;
  }
  if (keys.hi <= keys.lo) return {};
  return keys;
}

// The dense mask's answer for one element (true = may attend); true where there is none.
TILEWISE_HD inline bool mask_allows(const ScoreTensor& mask, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (!mask.data) return true;
  const int64_t at = b * mask.batch_stride + h * mask.head_stride + i * mask.row_stride + j * mask.key_stride;
  const auto* bytes = static_cast<const uint8_t*>(mask.data);
  if (mask.dtype == DType::bit) return ((bytes[at >> 3] >> (at & 7)) & 1) != 0;
  return bytes[at] != 0;
}

// Dense mask and segment ids together, for row i and key j of sequences that begin at the given rows.
TILEWISE_HD inline bool pair_allowed(const ForwardParams& p, int64_t b, int64_t h, int64_t q_begin,
                                     int64_t kv_begin, int64_t i, int64_t j) {
  if (!mask_allows(p.mask, b, h, i, j)) return false;
  return !p.segment_ids_q.data ||
         read_row_index(p.segment_ids_q, b, q_begin, i) == read_row_index(p.segment_ids_kv, b, kv_begin, j);
}

enum class TileClass { skip, full, partial };

// What a tile of rows sees, summed up. Start from the default and add rows; rows that see nothing count as
// partial.
struct TileBounds {
  int64_t lo_min = INT64_MAX, lo_max = 0;
  int64_t hi_min = INT64_MAX, hi_max = 0;

  TILEWISE_HD void add(Interval keys) {
    if (keys.hi <= keys.lo) {
      hi_min = 0;
      return;
    }
    lo_min = keys.lo < lo_min ? keys.lo : lo_min;
    lo_max = keys.lo > lo_max ? keys.lo : lo_max;
    hi_min = keys.hi < hi_min ? keys.hi : hi_min;
    hi_max = keys.hi > hi_max ? keys.hi : hi_max;
  }
  TILEWISE_HD bool empty() const { return hi_max == 0; }
  // Keys [j0, j1), j0 < j1.
  TILEWISE_HD TileClass classify(int64_t j0, int64_t j1) const {
    if (j1 <= lo_min || j0 >= hi_max) return TileClass::skip;
    return (j0 >= lo_max && j1 <= hi_min) ? TileClass::full : TileClass::partial;
  }
  // First and one-past-last key tile of width tile_n that is not skipped by the interval.
  TILEWISE_HD Interval key_tiles(int64_t tile_n) const {
    if (empty()) return {};
    return {lo_min / tile_n, (hi_max + tile_n - 1) / tile_n};
  }
};

// Smallest and largest segment id of a tile's rows or keys.
struct SegmentBounds {
  int64_t low = INT64_MAX, high = INT64_MIN;

  TILEWISE_HD void add(int64_t id) {
    low = id < low ? id : low;
    high = id > high ? id : high;
  }
};

// Folds segments into the interval's class: disjoint id ranges skip, one shared id changes nothing.
TILEWISE_HD inline TileClass classify_segments(TileClass by_interval, SegmentBounds rows,
                                               SegmentBounds keys) {
  if (by_interval == TileClass::skip || rows.high < keys.low || keys.high < rows.low) return TileClass::skip;
  if (rows.low == rows.high && keys.low == keys.high) return by_interval;
  return TileClass::partial;
}

}  // namespace tilewise
#endif  // TILEWISE_CORE_MASK_H_
