// Who walks which keys. Blocks of a team have a key head each and walk the same keys at the same time, so
// that they read neighbouring bytes; all sequences stand in one line, and each team takes an equal piece of
// it. Where lengths are the device's, every block finds what it needs to know of all sequences, and its own
// place.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_WALK_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_WALK_H_

#include "core/cache.h"
#include "cuda/sm80/split_schedule.cuh"
#include "cuda/sm90/split_plain_args.cuh"

namespace tilewise::sm90 {

__host__ __device__ __forceinline__ PlainSpan make_span(const ForwardParams& p, const tile::FastDivide& group,
                                                        int keys, int batch) {
  PlainSpan s;
  const Sequence sequence = sequence_of(p, batch);
  tile::SequenceBand band;
  band.take(p, sequence, batch, 0);
  s.batch = batch, s.q_begin = band.q_begin, s.kv_begin = band.kv_begin, s.len_q = band.len_q;
  s.kv_first = band.kv_first, s.kv_last = band.kv_last;
  s.lo_shift = band.lo_shift, s.hi_shift = band.hi_shift;
  s.rows = min(static_cast<int>(sequence.rows_q) * static_cast<int>(group.divisor), cuda::kSplitRows);
  const int last = min(group.divide(max(s.rows - 1, 0)), s.len_q - 1);
  s.see_first = s.see_last = 0;
  if (s.rows > 0 && last >= 0) {
    s.see_first = max(s.lo(0), 0);
    s.see_last = s.hi(last);
    if (s.see_last <= s.see_first) s.see_first = s.see_last = 0;
  }
  s.first = s.see_first / keys;
  s.groups = (s.see_last + keys - 1) / keys - s.first;
  if (s.see_last == 0) s.groups = s.rows > 0 ? 1 : 0;
  return s;
}

// Once in the code: much of it, and rarely run.
static __device__ __noinline__ void find_span(const PlainArgs& args, int keys, int batch, PlainSpan* to) {
  *to = make_span(args.params, args.group, keys, batch);
}

// The warp's key head, and the warp's number among those that share it.
template <typename C>
__device__ __forceinline__ int key_head() {
  const int block = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
  return C::kHeads == 1 ? block : block * C::kHeads + warp / C::kSharing;
}
template <typename C>
__device__ __forceinline__ int sharer() {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  return C::kHeads == 1 ? warp : warp % C::kSharing;
}

// What a block takes of a unit: `count` groups of its keys from the `at`-th on; 0: there is no more.
struct PlainPiece {
  int batch = 0, at = 0, count = 0;
  int begin = 0;  // the unit's first group on the line
};

// A place in the line, and what is left of the block's piece of it.
template <typename C>
struct PlainWalk {
  int entry = 0, at = 0, left = 0, position = 0;

  static __device__ __forceinline__ const PlainSpan& span(const PlainArgs& args, const PlainShared<C>& shared,
                                                          int batch) {
    if constexpr (C::kUniform) return args.span;
    return shared.table[batch];
  }
  __device__ __forceinline__ PlainPiece next(const PlainArgs& args, const PlainShared<C>& shared) {
    PlainPiece piece;
    piece.batch = entry;
    if (left <= 0) return piece;
    int groups = span(args, shared, entry).groups;
    if constexpr (!C::kUniform && !C::kCluster)
      while (groups == 0) groups = span(args, shared, ++entry).groups;
    piece.batch = entry++;
    piece.at = at;
    piece.count = min(left, groups - at);
    piece.begin = position - at;
    position += piece.count;
    left -= piece.count;
    at = 0;
    return piece;
  }
};

// By the whole block.
template <typename C>
__device__ __forceinline__ PlainWalk<C> find_place(const PlainArgs& args, PlainShared<C>& shared,
                                                   int* share) {
  PlainWalk<C> walk;
  *share = args.share;
  int total = args.total;
  if constexpr (!C::kUniform) {
    const int entry = threadIdx.x;
    const bool mine = entry < (C::kCluster ? 1 : args.batch);
    if (mine) find_span(args, C::kKeys, entry, &shared.table[entry]);
    const int groups = mine ? shared.table[entry].groups : 0;
    int before = 0;
    total = sm80::scan_block<C>(shared, groups, &before);
    const int parts = C::kCluster ? args.cluster : gridDim.y;
    *share = (total + parts - 1) / parts;
    if constexpr (!C::kCluster) *share = max(*share, sm80::kLeastShare / C::kKeys);
    const int begin = *share * static_cast<int>(blockIdx.y);
    if (begin >= before && begin < before + groups) {
      shared.found_entry = entry;
      shared.found_at = begin - before;
    }
    __syncthreads();
  }
  walk.position = *share * static_cast<int>(blockIdx.y);
  walk.left = min(*share, total - walk.position);
  if (walk.left <= 0) return walk;
  if constexpr (C::kUniform) {
    walk.entry = args.groups.divide(walk.position);
    walk.at = walk.position - walk.entry * static_cast<int>(args.groups.divisor);
  } else {
    walk.entry = shared.found_entry;
    walk.at = shared.found_at;
  }
  return walk;
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_WALK_H_
