// Forward for few queries and many keys, by tiles of 64 rows, on 9.0: groups of many heads, several queries,
// head dims above 128. How keys are cut, scheduled and joined is sm80/split.cuh's; here all warps of a block
// work on the same keys.
//
// Roles. A warpgroup copies keys into a ring of stages (cp.async), across the ends of units. Two multiply;
// each has half of O's columns. To head dim 128 they share every step of kKeys keys: each sums S over half of
// head_dim and passes it to the other; both then hold the same weights. What follows is of that form; wider
// heads have steps in turns (split_wide_turns.cuh).
//
//   S = Q K^T     wgmma, of the next step, while this one's weights are made
//   P = 2^(S - m) m the running maximum of the row; O falls where it rises
//   O += P V      wgmma, P rounded in registers
//
// Those that multiply meet once a step, when both have laid down their sums. A stage that is filled, or read,
// is told of by mbarriers.
//
// Memory. Shared: Q, 64 rows; a ring of stages, K and V of a step, swizzled for wgmma; two steps' sums. Where
// values are the beginning of their keys (latent attention: v is k's storage) a stage is K alone. Scratch and
// counters as in sm80/split.cuh; a part has as many rows as the problem's groups, up to 64.
//
// Invariants. Rows of a tile beyond the problem's are zeros in Q and written nowhere; keys that no row sees
// are zeros in shared memory. What a warpgroup does to a row is the same bits in the other one. Where a row's
// O is not finite, its columns are redone key by key.
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/sm90/split_wide_end.cuh"
#include "cuda/sm90/split_wide_load.cuh"
#include "cuda/sm90/split_wide_turns.cuh"

namespace tilewise::sm90 {

// A step whose sums have been laid down. kMore: the unit has a next one.
template <bool kMore, typename C>
__device__ __forceinline__ void wide_step(const WideArgs& args, WideShared<C>& shared,
                                          WideProducts<C>& products, int key0, StageRing<C> ring, int turn) {
  meet_workers<C>();
  float r_next[WideProducts<C>::kScores];
  if constexpr (kMore) products.start(shared, ring.next(), r_next);
  products.take_up(shared, turn);
  uint32_t r_p[WideProducts<C>::kScores / 2];
  products.weigh(args, shared, key0, r_p);
  products.issue_values(r_p, C::VTile::mn_major(shared.stage[ring.stage] + C::kValuesAt));
  if constexpr (kMore) {
    ptx::wgmma_wait<1>();
    ptx::pin(r_next);
#pragma unroll
    for (int i = 0; i < WideProducts<C>::kScores; ++i) products.r_s[i] = r_next[i];
    products.lay_down(shared, 1 - turn);
  }
  ptx::wgmma_wait<0>();
  ptx::pin(products.r_o);
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&shared.empty[ring.stage]);
}

template <typename C>
__device__ __forceinline__ void multiply_pieces(const WideArgs& args, WideShared<C>& shared) {
  WideProducts<C> products;
  StageRing<C> ring;
  int turn = 0;
  wait_for_first_piece<C>();
#pragma unroll 1
  for (int number = 0;; number = number + 1 == WideShared<C>::kPieces ? 0 : number + 1) {
    const sm80::Piece& piece = shared.pieces[number];
    int left = __shfl_sync(~0u, piece.count, 0);
    if (left == 0) return;
    int key0 = (piece.span.first + piece.at) * C::kKeys;
    products.begin(args, shared, sm80::Unit(piece.span, piece.head, C::kRows));
    ptx::fence_async_shared();
    meet_workers<C>();
    products.start(shared, ring, products.r_s);
    ptx::wgmma_wait<0>();
    ptx::pin(products.r_s);
    products.lay_down(shared, turn);
#pragma unroll 1
    for (; left > 1; --left) {
      wide_step<true>(args, shared, products, key0, ring, turn);
      ring = ring.next();
      turn = 1 - turn;
      key0 += C::kKeys;
    }
    wide_step<false>(args, shared, products, key0, ring, turn);
    ring = ring.next();
    turn = 1 - turn;
    products.finish();
    finish_wide_unit(args, shared, piece, products);
    meet_workers<C>();  // Q and what is known of rows have been read
  }
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1) split_wide_forward(const __grid_constant__ WideArgs args) {
  if (!args.early) ptx::grid_wait();
  ptx::grid_release();
  extern __shared__ __align__(1024) unsigned char s_memory[];
  WideShared<C>& shared = *reinterpret_cast<WideShared<C>*>(s_memory);
  if (!sm80::find_share<C>(args, shared)) return;
  if (threadIdx.x == 0) {
    for (int n = 0; n < C::kStages; ++n) {
      ptx::mbarrier_init(&shared.full[n], C::kCopiers);
      ptx::mbarrier_init(&shared.empty[n], C::kWorkers / 32);
    }
  }
  __syncthreads();
  ptx::grid_wait();
  if (threadIdx.x < C::kCopiers) {
    ptx::release_registers<C::kCopierRegisters>();
    WideLoader<C>(args, shared).run();
  } else {
    ptx::take_registers<C::kWorkerRegisters>();
    if constexpr (C::kTurns)
      multiply_in_turns(args, shared);
    else
      multiply_pieces(args, shared);
  }
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_H_
