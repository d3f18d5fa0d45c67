// Who walks which keys, from lengths that only the device knows. A unit is a tile of rows of one key head;
// units stand in one line, each as long as the groups of keys that its rows see, and every block takes an
// equal piece of the line: skewed batches are as balanced as uniform ones. Each block finds its own place;
// the line is never stored. Where blocks stand in teams, the units of each key head stand in a line of their
// own, all lines alike, and a team's blocks, one for each head, take the same piece of their lines: they read
// neighbouring bytes at the same time.
#ifndef TILEWISE_CUDA_SM80_SPLIT_SCHEDULE_H_
#define TILEWISE_CUDA_SM80_SPLIT_SCHEDULE_H_

#include "core/cache.h"
#include "cuda/sm80/split_args.cuh"

namespace tilewise::sm80 {

// Keys of the shortest piece that a block is started for: fewer would end in more parts to join than they
// save.
constexpr int kLeastShare = 64;

template <typename C>
__host__ __device__ __forceinline__ Span span_of(const SplitArgs& args, int entry, int chunks) {
  const ForwardParams& p = args.params;
  Span s;
  s.chunk = 0;
  int rest = entry;
  if (chunks) {
    rest = entry / chunks;
    s.chunk = entry - rest * chunks;
  }
  const int batch = args.q_tiles == 1 ? rest : rest / args.q_tiles;
  s.q_tile = rest - batch * args.q_tiles;
  const Sequence sequence = sequence_of(p, batch);
  s.band.take(p, sequence, batch, 0);
  const int group = static_cast<int>(args.group.divisor), row0 = s.q_tile * C::kRows;
  s.rows = min(max(static_cast<int>(sequence.rows_q) * group - row0, 0), C::kRows);
  s.see_first = s.see_last = 0;
  const int first = args.group.divide(row0);
  const int last = min(args.group.divide(row0 + s.rows - 1), s.band.len_q - 1);
  if (s.rows > 0 && first <= last) {
    s.see_first = max(s.band.lo(first), 0);
    s.see_last = s.band.hi(last);
    if (chunks) {
      constexpr int kChunk = static_cast<int>(cuda::kSplitChunk);
      s.see_first = max(s.see_first, s.chunk * kChunk);
      s.see_last = min(s.see_last, (s.chunk + 1) * kChunk);
    }
    if (s.see_last <= s.see_first) s.see_first = s.see_last = 0;
  }
  // Where cuts are fixed a key's warp follows from the key alone.
  s.first = chunks ? s.see_first / C::kTileKeys * C::kGroups : s.see_first / C::kKeys;
  s.groups = (s.see_last + C::kKeys - 1) / C::kKeys - s.first;
  if (s.see_last == 0) s.groups = s.rows > 0 && chunks == 0 ? 1 : 0;
  return s;
}

// Of a piece: where its keys end, and the steps that every warp makes.
template <typename C>
__device__ __forceinline__ int piece_last(const Span& s, int at, int count) {
  return min(s.see_last, (s.first + at + count) * C::kKeys);
}
template <typename C>
__device__ __forceinline__ int steps_of(int count) {
  return (count + C::kGroups - 1) / C::kGroups;
}

// Sum over the block; every thread gets it. `before`: of the threads before this one.
template <typename C, typename Shared>
__device__ __forceinline__ int scan_block(Shared& shared, int mine, int* before) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared.scanned[warp] = sum;
  __syncthreads();
  int all = 0, of_warps = 0;
#pragma unroll
  for (int w = 0; w < C::kWarps; ++w) {
    if (w < warp) of_warps += shared.scanned[w];
    all += shared.scanned[w];
  }
  *before = of_warps + sum - mine;
  return all;
}

// Of a line: the blocks that share it, which of them this one is, and the key heads that stand on it, from
// which one on.
template <typename C>
__device__ __forceinline__ int line_blocks(const SplitArgs& args) {
  return C::kInTeams ? args.teams : static_cast<int>(gridDim.x);
}
template <typename C>
__device__ __forceinline__ int place_on_line(const SplitArgs& args) {
  return C::kInTeams ? args.team.divide(static_cast<int>(blockIdx.x)) : static_cast<int>(blockIdx.x);
}
template <typename C>
__device__ __forceinline__ int line_heads(const SplitArgs& args) {
  return C::kInTeams ? args.line_heads : static_cast<int>(args.params.heads_kv);
}
template <typename C>
__device__ __forceinline__ int first_head(const SplitArgs& args) {
  if constexpr (!C::kInTeams) return 0;
  return static_cast<int>(blockIdx.x) - place_on_line<C>(args) * static_cast<int>(args.team.divisor);
}

// Groups that each block takes.
template <typename C>
__device__ __forceinline__ int share_of(const SplitArgs& args, int total) {
  const uint32_t blocks = static_cast<uint32_t>(line_blocks<C>(args));
  return max(C::kInTeams ? args.least_share : kLeastShare / C::kKeys,
             static_cast<int>((static_cast<uint32_t>(total) + blocks - 1) / blocks));
}

// Groups of the line, and where this block begins in it, if it does: once over all entries to count, and once
// to find.
template <typename C, typename Shared>
__device__ __forceinline__ bool find_share(const SplitArgs& args, Shared& shared) {
  const int heads = line_heads<C>(args);
  if (args.uniform) {
    const int total = args.total, begin = share_of<C>(args, total) * place_on_line<C>(args);
    if (begin >= total) return false;
    const int entry = args.heads.divide(args.span_groups.divide(begin));
    if (threadIdx.x % 32 == 0)  // by all warps the same
      shared.found = {total, entry, begin - entry * args.span.groups * heads};
    __syncwarp();
    return true;
  }
  int total = 0, begin = 0, passed = 0, groups = 0, before = 0, sum = 0;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
    for (int base = 0; base < args.entries; base += C::kThreads) {
      const int entry = base + static_cast<int>(threadIdx.x);
      if (pass == 0 || args.entries > C::kThreads) {
        groups = entry < args.entries ? span_of<C>(args, entry, args.chunks).groups : 0;
        sum = scan_block<C>(shared, groups * heads, &before);
      }
      if (pass == 0) {
        total += sum;
        continue;
      }
      const int start = passed + before;
      if (groups > 0 && begin >= start && begin < start + groups * heads)
        shared.found = {total, entry, begin - start};
      passed += sum;
      if (passed > begin) break;
    }
    begin = share_of<C>(args, total) * place_on_line<C>(args);
    if (begin >= total) return false;
  }
  __syncthreads();
  return true;
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_SCHEDULE_H_
