// Forward for few queries and many keys, by tiles of 64 rows, on 9.0: groups of many heads, several queries,
// head dims above 128. How keys are cut, scheduled and joined is sm80/split.cuh's; here all warps of a block
// work on the same keys.
//
// Roles. Two warpgroups share every step of kKeys keys. Each sums S over half of head_dim and passes it to
// the other; both then hold the same weights; each has half of O's columns. All warps copy keys (cp.async),
// some steps ahead, across the ends of units.
//
//   S = Q K^T     wgmma, of the next step, while this one's weights are made
//   P = 2^(S - m) m the running maximum of the row; O falls where it rises
//   O += P V      wgmma, P rounded in registers
//
// One barrier a step. At it the keys of the next step have landed, for all threads; the other warpgroup's
// sums are there; and all have read the values of the step before, whose stage the next copies fill.
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
#include "cuda/sm90/split_wide_product.cuh"

namespace tilewise::sm90 {

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1) split_wide_forward(const __grid_constant__ WideArgs args) {
  if (!args.early) ptx::grid_wait();
  ptx::grid_release();
  extern __shared__ __align__(1024) unsigned char s_memory[];
  WideShared<C>& shared = *reinterpret_cast<WideShared<C>*>(s_memory);
  if (!sm80::find_share<C>(args, shared)) return;

  WideLoader<C> loader(args, shared);
  ptx::grid_wait();
  const uint32_t stages = ptx::shared_address(shared.stage[0]);
  const auto after = [](uint32_t stage) { return stage + 1 == C::kStages ? 0u : stage + 1; };
#pragma unroll 1
  for (int n = 0; n < C::kStages - 1; ++n) loader.issue(stages + n * C::kStageBytes);
  ptx::cp_async_wait<C::kStages - 2>();  // of the first step

  WideProducts<C> products;
  uint32_t stage = 0;
  int turn = 0;
#pragma unroll 1
  for (int number = 0;; number = number + 1 == WideShared<C>::kPieces ? 0 : number + 1) {
    const sm80::Piece& piece = shared.pieces[number];
    int left = __shfl_sync(~0u, piece.count, 0);
    if (left == 0) break;
    int key0 = (piece.span.first + piece.at) * C::kKeys;
    products.begin(args, shared, sm80::Unit(piece.span, piece.head, C::kRows));
    ptx::fence_async_shared();
    __syncthreads();
    products.issue_scores(products.r_s, C::QTile::k_major(shared.q), C::KTile::k_major(shared.stage[stage]));
    ptx::wgmma_wait<0>();
    ptx::pin(products.r_s);
    products.lay_down(shared, turn);
#pragma unroll 1
    for (;; key0 += C::kKeys) {
      ptx::cp_async_wait<C::kStages - 3>();
      ptx::fence_async_shared();
      __syncthreads();
      const uint32_t next = after(stage);
      // After a unit's last step there is nothing to sum up: what comes of it is not looked at.
      float r_next[WideProducts<C>::kScores];
      products.issue_scores(r_next, C::QTile::k_major(shared.q), C::KTile::k_major(shared.stage[next]));
      loader.issue(stages + (stage == 0 ? C::kStages - 1 : stage - 1) * C::kStageBytes);
      products.take_up(shared, turn);
      uint32_t r_p[WideProducts<C>::kScores / 2];
      products.weigh(args, shared, key0, r_p);
      products.issue_values(r_p, C::VTile::mn_major(shared.stage[stage] + C::kValuesAt));
      ptx::wgmma_wait<1>();
      ptx::pin(r_next);
#pragma unroll
      for (int i = 0; i < WideProducts<C>::kScores; ++i) products.r_s[i] = r_next[i];
      turn = 1 - turn;
      products.lay_down(shared, turn);
      ptx::wgmma_wait<0>();
      ptx::pin(products.r_o);
      stage = next;
      if (--left == 0) break;
    }
    finish_wide_unit(args, shared, piece, products);
    __syncthreads();  // Q and what is known of rows have been read
  }
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_H_
