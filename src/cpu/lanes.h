// Lanes: the rows of q that one tile keeps in SIMD lanes, and what each of them may see.
//
// A lane is a (query, head) pair: with `heads_in_lanes` > 1 the query heads that share a key head stand side
// by side, so that few queries still fill the vectors. Everything that differs between rows (band, lengths,
// ranges, position, slope, segment, dropout state) is a value per lane; kernels compare it with the key of
// the S^T row at hand.
#ifndef TILEWISE_CPU_LANES_H_
#define TILEWISE_CPU_LANES_H_

#include <cstdint>

#include "core/mask.h"
#include "core/params.h"

namespace tilewise::cpu {

constexpr int kMaxLanes = 128;  // widest tile_m of any row of the table

// What a row's scores depend on beside its products.
struct RowPlace {
  int32_t position = 0, segment = 0;
  float slope = 0.0f;
  float beyond = 0.0f;  // |position| past 2^30: what `position` was clamped by
};
RowPlace place_of_row(const ForwardParams& p, const Sequence& sequence, int64_t b, int64_t head, int64_t row);

// True where position and ranges let every row of a sequence see the same keys.
inline bool rows_see_the_same(const ForwardParams& p) {
  return p.window_left < 0 && p.window_right < 0 && !p.kv_ranges.data;
}

struct Lanes {
  int count = 0;  // lanes that hold a row; the others see nothing
  int64_t b = 0;
  Sequence sequence;
  TileBounds bounds;
  SegmentBounds segments;  // of the rows that see anything; empty where the call has no segment ids
  alignas(64) int32_t lo[kMaxLanes];
  alignas(64) int32_t hi[kMaxLanes];
  alignas(64) int32_t row[kMaxLanes];
  alignas(64) int32_t head[kMaxLanes];
  alignas(64) int32_t position[kMaxLanes];
  alignas(64) int32_t segment[kMaxLanes];
  alignas(64) float slope[kMaxLanes];
  alignas(64) float beyond[kMaxLanes];
  alignas(64) uint32_t dropout_a[kMaxLanes];
  alignas(64) uint32_t dropout_b[kMaxLanes];

  bool sees_nothing(int lane) const { return hi[lane] <= lo[lane]; }
};

// Lane r holds query (first + r) / heads_in_lanes and head first_head + (first + r) % heads_in_lanes, r <
// count; lanes from count to a multiple of 64 see nothing. Position, beyond, slope and segment are filled
// where needs_general_scores.
void fill_lanes(Lanes& lanes, const ForwardParams& p, const Sequence& sequence, int64_t b, int64_t first_head,
                int heads_in_lanes, int64_t first, int count);

// Keys [first, last) of a tile, counted from its first, and the vectors [begin, end) of lanes that see any of
// them: on a diagonal or a window's edge, products leave out what no lane of a vector sees.
struct Piece {
  int first, last;
  int begin, end;
};
constexpr int kMaxPieces = 20;
constexpr int kMostVectors = kMaxPieces / 2 - 1;  // of a tile that is cut: each begins and ends once

// Cuts keys [j0, j0 + n) for `vectors` vectors of `lanes_each`; returns the number of pieces: 1 where cutting
// saves nothing, and always where a vector has one lane: products are summed by pieces, so that whether there
// are any may not hang on how many vectors the rows of a last block fill. Pieces that no lane sees are in it
// too, with begin == end. Cuts fall on keys that are multiples of `unit`, counted from the sequence's first.
int cut_pieces(Piece* pieces, const Lanes& lanes, int64_t j0, int n, int vectors, int lanes_each,
               int unit = 1);

// True where some tile of the call needs more than the interval test: scores go through FinishScores.
bool needs_general_scores(const ForwardParams& p);

// The segment ids of keys [j0, j0 + n) into ids[n]; their bounds are returned.
SegmentBounds load_key_segments(int32_t* ids, const ForwardParams& p, const Sequence& sequence, int64_t b,
                                int64_t j0, int n);

// Bias plus dense mask of keys [j0, j0 + n) as add[key][lane], leading dimension ld: what is added to the
// score, -inf where the pair is hidden. Lanes that see nothing get 0. Returns false, and writes nothing,
// where the call has neither.
bool load_bias_and_mask(float* add, int64_t ld, const ForwardParams& p, const Lanes& lanes, int64_t j0,
                        int n);

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_LANES_H_
