// Who walks which keys. Blocks of a team have a key head each and walk the same keys at the same time, so that
// they read neighbouring bytes; all sequences stand in one line, and each team takes an equal piece of it.
// Where lengths are the device's, every block finds its own place; the line is never stored.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_WALK_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_WALK_H_

#include "core/cache.h"
#include "cuda/ptx/cluster.cuh"
#include "cuda/sm80/split_schedule.cuh"
#include "cuda/sm90/split_plain_args.cuh"

namespace tilewise::sm90 {

__host__ __device__ __forceinline__ PlainSpan make_span(const ForwardParams& p, const tile::FastDivide& group,
                                                        int batch) {
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
  s.first = s.see_first / cuda::kSplitGroup;
  s.groups = (s.see_last + cuda::kSplitGroup - 1) / cuda::kSplitGroup - s.first;
  if (s.see_last == 0) s.groups = s.rows > 0 ? 1 : 0;
  return s;
}

// Once in the code: much of it, and rarely run.
static __device__ __noinline__ void find_span(const PlainArgs& args, int batch, PlainSpan* to) {
  *to = make_span(args.params, args.group, batch);
}

__device__ __forceinline__ int share_of_line(int total, int teams) {
  return max(sm80::kLeastShare / cuda::kSplitGroup,
             static_cast<int>((static_cast<uint32_t>(total) + teams - 1) / teams));
}

// A place in the line and what is left of the block's piece.
struct PlainPlace {
  int entry, at, left, share;
  int position;  // on the line
};

template <typename C>
__device__ __forceinline__ PlainPlace find_place(const PlainArgs& args, PlainShared<C>& shared) {
  PlainPlace place;
  if constexpr (C::kCluster) {
    const int rank = ptx::cluster_rank(), blocks = args.cluster;
    place.entry = static_cast<int>(blockIdx.y) / blocks;
    int groups = args.span.groups;
    place.share = args.share;
    if constexpr (!C::kUniform) {
      find_span(args, place.entry, &shared.spans[0]);  // by all threads the same
      __syncthreads();
      groups = shared.spans[0].groups;
      place.share = (groups + blocks - 1) / blocks;
    }
    place.at = place.position = place.share * rank;
    place.left = min(place.share, groups - place.at);
    return place;
  }
  const int team = blockIdx.y, teams = gridDim.y;
  if constexpr (C::kUniform) {
    place.share = args.share;
    place.position = args.share * team;
    place.entry = args.groups.divide(place.position);
    place.at = place.position - place.entry * static_cast<int>(args.groups.divisor);
    place.left = min(args.share, args.total - place.position);
    return place;
  }
  PlainSpan span;
  int total = 0, begin = 0, passed = 0, groups = 0, before = 0, sum = 0, share = 0;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
    for (int base = 0; base < args.batch; base += C::kThreads) {
      const int entry = base + static_cast<int>(threadIdx.x);
      if (pass == 0 || args.batch > C::kThreads) {
        groups = 0;
        if (entry < args.batch) {
          find_span(args, entry, &span);
          groups = span.groups;
        }
        sum = sm80::scan_block<C>(shared, groups, &before);
      }
      if (pass == 0) {
        total += sum;
        continue;
      }
      const int start = passed + before;
      if (groups > 0 && begin >= start && begin < start + groups) {
        shared.found_entry = entry;
        shared.found_at = begin - start;
      }
      passed += sum;
      if (passed > begin) break;
    }
    share = share_of_line(total, teams);
    begin = share * team;
    if (begin >= total) break;
  }
  __syncthreads();
  place.share = share;
  place.position = begin;
  place.left = min(share, total - begin);
  if (place.left > 0) {
    place.entry = shared.found_entry;
    place.at = shared.found_at;
  }
  return place;
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_WALK_H_
