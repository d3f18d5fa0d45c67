// The split forward of sm80/split.cuh for calls that only read and multiply: one tile of rows of 128 columns,
// no softcap, no slopes, no fixed cuts. What it has that the other has not:
//
// Blocks of a team have neighbouring key heads and walk the same keys (split_plain_walk.cuh), so that they
// read neighbouring bytes at the same time, and few units are cut; a head each, or where rows are few and
// sequences many, as many heads as leave no multiprocessor without a block, each head with warps of its own.
// No barrier of the block stands between units: warps lay down what they made of one and walk on, Q of the
// next in their registers by then, and end its rows a step later. Where one sequence has few keys, blocks of
// a cluster share a unit and join its parts through each other's shared memory; their K and V come by the
// copy engine, all others' by the lanes.
//
// A row's bits do not depend on where keys lie: the forms (uniform or not, copy engine or not) cut and add
// alike.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_H_

#include "cuda/ptx/grid.cuh"
#include "cuda/sm90/split_plain_end.cuh"

namespace tilewise::sm90 {

template <typename C>
__device__ __forceinline__ void begin_block(const PlainArgs& args, PlainShared<C>& shared) {
  if (threadIdx.x == 0) {
    const bool by_lanes = !C::kCluster || (!C::kUniform && args.gather);
    ptx::mbarrier_init(&shared.laid, C::kThreads);
    ptx::mbarrier_init(&shared.taken, C::kThreads);
    for (auto& of_warp : shared.full)
      for (auto& full : of_warp) ptx::mbarrier_init(&full, by_lanes ? 32 : C::kQuantized ? 36 : 2);
    ptx::mbarrier_init_fence();
    if constexpr (C::kCluster) {
      ptx::tma_prefetch_map(&args.k_map.map);
      ptx::tma_prefetch_map(&args.v_map.map);
    }
  }
  __syncthreads();
}

// A block of a cluster: one unit, and a step of each warp at most.
template <typename C>
__device__ __forceinline__ void run_cluster(const PlainArgs& args, PlainShared<C>& shared,
                                            PlainWalk<C>& walk) {
  PlainLoader<C> loader(args, shared, walk);
  if constexpr (C::kUniform) ptx::grid_wait();
  loader.issue(0);
  const int warp = threadIdx.x / 32;
  const PlainPiece piece = walk.next(args, shared);
  const PlainSpan& span = walk.span(args, shared, piece.batch);
  PlainProducts<C> products;
  products.load_q(args, span, piece.batch);
  products.begin(args, span);
  const int key0 = (span.first + piece.at + warp) * C::kKeys;
  if (warp < piece.count && key0 < span.see_last) {
    ptx::mbarrier_wait(&shared.full[warp][0], 0);
    const uint32_t s_stage = ptx::shared_address(shared.stage[warp][0]);
    const auto& s_scale = shared.scale[C::kQuantized ? warp : 0][0];
    products.score(args, span, s_stage, s_scale, key0);
    products.template weigh<true>(args, s_stage, s_scale, key0);
  }
  lay_down(shared, products, span.rows, 0);
  ptx::cluster_acquire();  // every block has begun, before anyone stores into it
  take_rows(args, shared, span, piece.batch, 0, 0);
  join_cluster(args, shared, span, piece.batch);
}

template <typename C>
__device__ __forceinline__ void run_line(const PlainArgs& args, PlainShared<C>& shared, PlainWalk<C>& walk,
                                         int share) {
  PlainLoader<C> loader(args, shared, walk);
  if constexpr (C::kUniform) ptx::grid_wait();
#pragma unroll 1
  for (int n = 0; n < C::kStages; ++n) loader.issue(n);
  const int warp = threadIdx.x / 32;
  PlainProducts<C> products;
  PlainPiece piece = walk.next(args, shared);
  int before = -1;                 // the sequence of a unit whose rows are to be ended
  uint32_t stage = 0, parity = 0;  // a bit for each stage
  int ordinal = 0;
  products.load_q(args, walk.span(args, shared, piece.batch), piece.batch);
#pragma unroll 1
  while (piece.count > 0) {
    const PlainSpan& span = walk.span(args, shared, piece.batch);
    const PlainPiece ahead = walk.next(args, shared);
    const int last = min(span.see_last, (span.first + piece.at + piece.count) * C::kKeys);
    int key0 = (span.first + piece.at + sharer<C>()) * C::kKeys;
    products.begin(args, span);
#pragma unroll 1
    for (int left = (piece.count + C::kSharing - 1) / C::kSharing; left > 0; --left) {
      const bool real = key0 < last;
      const uint32_t s_stage = ptx::shared_address(shared.stage[warp][stage]);
      const auto& s_scale = shared.scale[C::kQuantized ? warp : 0][stage];
      if (real) {
        ptx::mbarrier_wait(&shared.full[warp][stage], parity >> stage & 1);
        parity ^= 1u << stage;
        products.score(args, span, s_stage, s_scale, key0);
      }
      // Now, so that it is there when the next unit begins.
      if (left == 1 && ahead.count > 0)
        products.load_q(args, walk.span(args, shared, ahead.batch), ahead.batch);
      if (real) {
        products.template weigh<false>(args, s_stage, s_scale, key0);
        __syncwarp();  // all lanes have read the stage
      }
      loader.issue(stage);
      stage = stage + 1 == C::kStages ? 0 : stage + 1;
      key0 += C::kSharing * C::kKeys;
      if (before >= 0) {
        take_rows(args, shared, walk.span(args, shared, before), before, -1, ordinal - 1);
        before = -1;
      }
    }
    lay_down(shared, products, span.rows, ordinal);
    if (piece.at > 0 || piece.count < span.groups) {
      take_rows(args, shared, span, piece.batch, piece.at, ordinal);
      join_blocks(args, shared, span, piece.batch, piece.begin, share);
    } else {
      before = piece.batch;
    }
    ++ordinal;
    piece = ahead;
  }
  if (before >= 0) take_rows(args, shared, walk.span(args, shared, before), before, -1, ordinal - 1);
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kCluster&& C::kMergeRows == 4 && C::kUniform ? 2 : 1)
    split_plain(const __grid_constant__ PlainArgs args) {
  ptx::grid_release();
  if constexpr (C::kCluster) ptx::cluster_begin();
  extern __shared__ __align__(1024) unsigned char s_memory[];
  PlainShared<C>& shared = *reinterpret_cast<PlainShared<C>*>(s_memory);
  begin_block(args, shared);
  if constexpr (!C::kUniform) ptx::grid_wait();
  int share;
  PlainWalk<C> walk = find_place(args, shared, &share);  // of uniform sequences in the parameters alone
  if constexpr (C::kCluster)
    run_cluster(args, shared, walk);
  else
    run_line(args, shared, walk, share);
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_H_
