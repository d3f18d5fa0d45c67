// Who walks which keys, from lengths that only the device knows. A unit is a tile of 16 rows of one key head;
// units stand in one line, each as long as the key tiles (steps) that its rows see, and every block takes an equal
// piece of the line: skewed batches are as balanced as uniform ones. Each block finds its own place; the line is
// never stored.
#ifndef TILEWISE_CUDA_SM80_SPLIT_SCHEDULE_H_
#define TILEWISE_CUDA_SM80_SPLIT_SCHEDULE_H_

#include "core/cache.h"
#include "cuda/sm80/split_args.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::sm80 {

// An entry of the line: one tile of rows of one sequence (or one chunk of its keys), every key head of it.
struct Span {
  int32_t batch, q_tile, chunk;
  int32_t rows;                 // that are written
  int32_t see_first, see_last;  // keys that some row sees
  int32_t tile_first, tiles;    // key tiles; one without keys where rows are written all the same
};

// What tile/work.cuh says of a whole sequence.
__device__ __forceinline__ void look_at_sequence(tile::Work& w, const ForwardParams& p, int batch) {
  tile::make_work<1 << 30, 1>(w, p, batch, 0, 0);
}

template <typename C>
__device__ __forceinline__ Span span_of(const SplitArgs& args, int entry, int chunks) {
  const ForwardParams& p = args.params;
  Span s;
  s.chunk = 0;
  int rest = entry;
  if (chunks) {
    rest = entry / chunks;
    s.chunk = entry - rest * chunks;
  }
  s.batch = rest / args.q_tiles;
  s.q_tile = rest - s.batch * args.q_tiles;
  tile::Work w;
  look_at_sequence(w, p, s.batch);
  const int group = static_cast<int>(args.group.divisor), row0 = s.q_tile * C::kRows;
  s.rows = min(max(w.rows_q * group - row0, 0), C::kRows);
  s.see_first = s.see_last = 0;
  const int first = args.group.divide(row0), last = min(args.group.divide(row0 + s.rows - 1), w.len_q - 1);
  if (s.rows > 0 && first <= last) {
    s.see_first = max(w.lo(first), 0);
    s.see_last = w.hi(last);
    if (chunks) {
      constexpr int kChunk = static_cast<int>(cuda::kSplitChunk);
      s.see_first = max(s.see_first, s.chunk * kChunk);
      s.see_last = min(s.see_last, (s.chunk + 1) * kChunk);
    }
    if (s.see_last <= s.see_first) s.see_first = s.see_last = 0;
  }
  s.tile_first = s.see_first / C::kTileKeys;
  s.tiles = (s.see_last + C::kTileKeys - 1) / C::kTileKeys - s.tile_first;
  if (s.tiles == 0 && s.rows > 0 && chunks == 0) s.tiles = 1;
  return s;
}

// Sum over the block; every thread gets it. `before`: of the threads before this one.
template <typename C>
__device__ __forceinline__ int64_t scan_block(SplitShared<C>& shared, int64_t mine, int64_t* before) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int64_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared.steps[warp] = sum;
  __syncthreads();
  int64_t all = 0, of_warps = 0;
#pragma unroll
  for (int w = 0; w < C::kWarps; ++w) {
    if (w < warp) of_warps += shared.steps[w];
    all += shared.steps[w];
  }
  *before = of_warps + sum - mine;
  return all;
}

// Steps of the line, and where this block begins in it. Without work: entry = args.entries.
template <typename C>
__device__ __forceinline__ void find_share(const SplitArgs& args, SplitShared<C>& shared) {
  const int64_t heads = args.params.heads_kv;
  int64_t total = 0, before = 0;
  int32_t tiles = 0;
  const bool one_turn = args.entries <= C::kThreads;
  for (int base = 0; base < args.entries; base += C::kThreads) {
    const int entry = base + threadIdx.x;
    tiles = entry < args.entries ? span_of<C>(args, entry, args.chunks).tiles : 0;
    total += scan_block(shared, tiles * heads, &before);
  }
  if (threadIdx.x == 0) shared.found = {total, args.entries, 0};
  const int64_t share = (total + gridDim.x - 1) / gridDim.x, begin = share * blockIdx.x;
  __syncthreads();
  if (begin >= total) return;
  int64_t passed = 0;
  for (int base = 0; base < args.entries && passed <= begin; base += C::kThreads) {
    const int entry = base + threadIdx.x;
    int64_t sum = total;
    if (!one_turn) {
      tiles = entry < args.entries ? span_of<C>(args, entry, args.chunks).tiles : 0;
      sum = scan_block(shared, tiles * heads, &before);
    }
    const int64_t start = passed + before;
    if (tiles > 0 && begin >= start && begin < start + tiles * heads)
      shared.found = {total, entry, static_cast<int32_t>(begin - start)};
    passed += sum;
  }
  __syncthreads();
}

// A walk along the block's piece of the line. The copies run ahead of the products, each with a cursor.
template <typename C>
struct Cursor {
  int64_t left;  // steps of the piece from here on; with chunks: units begin while some are left
  int32_t entry, head, at;
  Span span;

  __device__ __forceinline__ Cursor(const SplitArgs& args, const Found& found, int64_t share) {
    const int64_t begin = share * blockIdx.x;
    left = min(share, found.total - begin);
    entry = found.entry;
    if (entry >= args.entries || left <= 0) {
      left = 0;
      return;
    }
    span = span_of<C>(args, entry, args.chunks);
    head = found.at / span.tiles;
    at = found.at - head * span.tiles;
    if (args.chunks && at > 0) {  // the block before walks all of it
      left -= span.tiles - at;
      if (left > 0) next_unit(args);
    }
  }
  __device__ __forceinline__ bool done() const { return left <= 0; }
  __device__ __forceinline__ void next_unit(const SplitArgs& args) {
    at = 0;
    if (++head < args.params.heads_kv) return;
    head = 0;
    do span = span_of<C>(args, ++entry, args.chunks);
    while (span.tiles == 0);
  }
  // Steps of the unit that belong to this block.
  __device__ __forceinline__ int count(const SplitArgs& args) const {
    return args.chunks ? span.tiles : static_cast<int>(min(left, static_cast<int64_t>(span.tiles - at)));
  }
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_SCHEDULE_H_
