#include "cpu/lanes.h"

#include <algorithm>
#include <numeric>

#include "core/dropout.h"
#include "core/element.h"
#include "core/softmax.h"

namespace tilewise::cpu {

constexpr int kTail =
    64;  // lanes that no row fills are made empty to a multiple of this, or of a tile that is less

RowPlace place_of_row(const ForwardParams& p, const Sequence& sequence, int64_t b, int64_t head,
                      int64_t row) {
  const int64_t position = row + sequence.q_offset, near = clamp_index(position, -(1 << 30), 1 << 30);
  RowPlace place;
  place.position = static_cast<int32_t>(near);
  place.beyond = static_cast<float>(position > near ? position - near : near - position);
  place.slope = p.alibi_slope(b, head);
  if (p.segment_ids_q.data)
    place.segment = static_cast<int32_t>(read_row_index(p.segment_ids_q, b, sequence.q_begin, row));
  return place;
}

void fill_lanes(Lanes& lanes, const ForwardParams& p, const Sequence& sequence, int64_t b, int64_t first_head,
                int heads_in_lanes, int64_t first, int count) {
  lanes.count = count;
  lanes.b = b;
  lanes.sequence = sequence;
  lanes.bounds = {};
  lanes.segments = {};
  const bool general = needs_general_scores(p);  // who else reads position, slope and segment?
  int64_t row = first / heads_in_lanes, head = first_head + first % heads_in_lanes;
  const bool alike = rows_see_the_same(p) && !p.dropout_threshold;
  int r = 0;
  if (count > 0 && alike && !general && heads_in_lanes == 1 && first + count <= sequence.len_q) {
    const Interval keys = visible_keys(p, sequence, b, first);
    lanes.bounds.add(keys);
    std::fill_n(lanes.lo, count, static_cast<int32_t>(keys.lo));
    std::fill_n(lanes.hi, count, static_cast<int32_t>(keys.hi));
    std::fill_n(lanes.head, count, static_cast<int32_t>(head));
    std::iota(lanes.row, lanes.row + count, static_cast<int32_t>(first));
    r = count;
  }
  for (; r < count; ++r, ++head) {
    if (head == first_head + heads_in_lanes) {
      head = first_head;
      ++row;
    }
    const Interval keys = visible_keys(p, sequence, b, row);
    lanes.bounds.add(keys);
    lanes.lo[r] = static_cast<int32_t>(keys.lo);
    lanes.hi[r] = static_cast<int32_t>(keys.hi);
    lanes.row[r] = static_cast<int32_t>(row);
    lanes.head[r] = static_cast<int32_t>(head);
    if (general) {
      const RowPlace place = place_of_row(p, sequence, b, head, row);
      lanes.position[r] = place.position;
      lanes.beyond[r] = place.beyond;
      lanes.slope[r] = place.slope;
      lanes.segment[r] = place.segment;
      if (p.segment_ids_q.data && keys.hi > keys.lo) lanes.segments.add(place.segment);
    }
    if (p.dropout_threshold) {
      const DropoutRow state = dropout_row_of(p, b, head, row);
      lanes.dropout_a[r] = state.a;
      lanes.dropout_b[r] = state.b;
    }
  }
  for (r = count; r < (count + kTail - 1) / kTail * kTail; ++r) {
    lanes.lo[r] = lanes.hi[r] = lanes.row[r] = lanes.position[r] = lanes.segment[r] = 0;
    lanes.head[r] = static_cast<int32_t>(first_head);
    lanes.slope[r] = lanes.beyond[r] = 0.0f;
    lanes.dropout_a[r] = lanes.dropout_b[r] = 0;
  }
}

int cut_pieces(Piece* pieces, const Lanes& lanes, int64_t j0, int n, int vectors, int lanes_each, int unit) {
  pieces[0] = {0, n, 0, vectors};
  if (vectors < 2 || lanes_each < 2) return 1;
  int from[kMaxPieces], to[kMaxPieces], cuts[kMaxPieces + 2];
  int count = 0;
  cuts[count++] = 0;
  cuts[count++] = n;
  for (int v = 0; v < vectors; ++v) {
    int64_t lo = INT64_MAX, hi = 0;
    for (int r = v * lanes_each; r < (v + 1) * lanes_each; ++r) {
      if (lanes.sees_nothing(r)) continue;
      lo = std::min<int64_t>(lo, lanes.lo[r]);
      hi = std::max<int64_t>(hi, lanes.hi[r]);
    }
    lo = std::min(lo, j0 + n) / unit * unit;
    hi = (std::min(hi, j0 + n) + unit - 1) / unit * unit;
    from[v] = static_cast<int>(clamp_index(lo - j0, 0, n));
    to[v] = static_cast<int>(clamp_index(hi - j0, 0, n));
    cuts[count++] = from[v];
    cuts[count++] = to[v];
  }
  std::sort(cuts, cuts + count);
  int made = 0;
  for (int c = 0; c + 1 < count; ++c) {
    if (cuts[c] == cuts[c + 1]) continue;
    Piece piece{cuts[c], cuts[c + 1], vectors, 0};
    for (int v = 0; v < vectors; ++v) {
      if (to[v] <= piece.first || from[v] >= piece.last) continue;
      piece.begin = std::min(piece.begin, v);
      piece.end = v + 1;
    }
    if (piece.begin >= piece.end) piece.begin = piece.end = 0;
    pieces[made++] = piece;
  }
  return made;
}

bool needs_general_scores(const ForwardParams& p) {
  return p.softcap > 0.0f || p.bias.data || p.mask.data || p.alibi_slopes || p.segment_ids_q.data;
}

SegmentBounds load_key_segments(int32_t* ids, const ForwardParams& p, const Sequence& sequence, int64_t b,
                                int64_t j0, int n) {
  SegmentBounds bounds;
  for (int j = 0; j < n; ++j) {
    const int64_t id = read_row_index(p.segment_ids_kv, b, sequence.kv_begin, j0 + j);
    ids[j] = static_cast<int32_t>(id);
    bounds.add(id);
  }
  return bounds;
}

bool load_bias_and_mask(float* add, int64_t ld, const ForwardParams& p, const Lanes& lanes, int64_t j0,
                        int n) {
  if (!p.bias.data && !p.mask.data) return false;
  // Keys outside a lane's interval are not read: a mask or bias may end where the keys of its sequence do.
  for (int r = 0; r < kMaxLanes && r < ld; ++r) {
    const int64_t lo = clamp_index(lanes.lo[r] - j0, 0, n), hi = clamp_index(lanes.hi[r] - j0, 0, n);
    const bool sees = !lanes.sees_nothing(r);
    for (int64_t j = 0; j < (sees ? lo : n); ++j) add[j * ld + r] = 0.0f;
    if (!sees) continue;
    for (int64_t j = hi > lo ? hi : lo; j < n; ++j) add[j * ld + r] = 0.0f;
    const int64_t head = lanes.head[r], row = lanes.row[r];
    if (p.bias.data) {
      const int64_t at = lanes.b * p.bias.batch_stride + head * p.bias.head_stride + row * p.bias.row_stride;
      if (p.bias.dtype == DType::f32 && p.bias.key_stride == 1) {
        const float* from = static_cast<const float*>(p.bias.data) + at + j0;
        for (int64_t j = lo; j < hi; ++j) add[j * ld + r] = from[j];
      } else {
        for (int64_t j = lo; j < hi; ++j)
          add[j * ld + r] = load_element(p.bias.data, p.bias.dtype, at + (j0 + j) * p.bias.key_stride);
      }
    } else {
      for (int64_t j = lo; j < hi; ++j) add[j * ld + r] = 0.0f;
    }
    if (p.mask.data) {
      for (int64_t j = lo; j < hi; ++j)
        if (!mask_allows(p.mask, lanes.b, head, row, j0 + j)) add[j * ld + r] = kNegativeInfinity;
    }
  }
  return true;
}

}  // namespace tilewise::cpu
