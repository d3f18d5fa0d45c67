// Forward for few queries and many keys, on compute capability 8.0 and up: what it has to do is read K and V
// once, at the rate of the memory.
//
// A unit of work is 16 rows of one key head: queries times the heads of their group, so each key is read once
// for all of them. Blocks, one a multiprocessor, take equal pieces of the line of all units
// (split_schedule.cuh).
//
// Roles. Every warp is on its own: it copies 16 keys a step into its own stages, some steps ahead, across the
// ends of units, waits for them and multiplies; no barrier stands in the loop.
//
//   S = Q K^T     mma, Q in registers; scores in exponents of 2; hidden pairs are -inf
//   P = 2^(S - m) m the running maximum of the warp; O falls where it rises
//   O += P V      mma, P rounded in registers
//
// At the end of a unit the warps put their maxima, sums and O together in shared memory, in the order of
// warps. A unit that lies in one block is written. Of one that lies in several each block leaves a part in
// scratch, and the last to arrive joins them in the order of the line. Where cuts are fixed (batch
// invariance) every chunk leaves a part, and a second launch joins them.
//
// Memory. Shared: stages of K and V rows, 128 bytes a panel and swizzled (tile/shared_tile.cuh), with their
// scales where they are quantised; 8 rows of O of each warp. Counters: a byte of the control block for each
// unit that is cut, named after the block that it begins in; zero on entry, and the last to arrive leaves
// zero.
//
// Invariants. Rows that no query of the unit sees are zeros in shared memory or not multiplied at all. A key
// step's warp follows from the key's index, so with fixed cuts a row's bits follow from its sequence. Where a
// row's O is not finite the row is redone key by key.
#ifndef TILEWISE_CUDA_SM80_SPLIT_H_
#define TILEWISE_CUDA_SM80_SPLIT_H_

#include "cuda/ptx/grid.cuh"
#include "cuda/sm80/split_join.cuh"
#include "cuda/sm80/split_load.cuh"
#include "cuda/sm80/split_product.cuh"

namespace tilewise::sm80 {

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1) split_forward(const __grid_constant__ SplitArgs args) {
  if (!args.early) ptx::grid_wait();
  ptx::grid_release();
  extern __shared__ __align__(128) unsigned char s_memory[];
  SplitShared<C>& shared = *reinterpret_cast<SplitShared<C>*>(s_memory);
  if (!find_share<C>(args, shared)) return;

  Loader<C> loader(args, shared);
  ptx::grid_wait();
  const int warp = threadIdx.x / 32;
  const uint32_t stages = ptx::shared_address(shared.stage[warp][0]);
  uint32_t stage = 0;
  // Of the piece in hand: steps, the warp's next key, where its keys end; its place in the ring.
  int left = 0, key0 = 0, last = 0, number = 0;
  Products<C> products;
  // One loop for filling the stages and for walking on: the code of a copy stands once, and fits the caches.
#pragma unroll 1
  for (int n = 0;; ++n) {
    const Piece& piece = shared.pieces[number];
    const uint32_t at = stages + stage * C::kStageBytes;
    const auto s_scale = shared.of(warp, stage);
    if (n >= C::kStages) {
      if (left == 0) {
        left = steps_of<C>(piece.count);
        if (left == 0) break;
        key0 = (piece.span.first + piece.at + warp) * C::kKeys;
        last = piece_last<C>(piece.span, piece.at, piece.count);
        products.begin(args, shared, Unit(piece.span, piece.head));
      }
      ptx::cp_async_wait<C::kStages - 1>();
      __syncwarp();
      if (key0 < last && key0 + C::kKeys > piece.span.see_first)
        products.step(args, shared, at, s_scale, key0);
      __syncwarp();  // all lanes have read the stage
      key0 += C::kTileKeys;
      --left;
    }
    loader.issue(at, s_scale);
    stage = stage + 1 == C::kStages ? 0 : stage + 1;
    if (n >= C::kStages && left == 0) {
      finish_unit(args, shared, piece, products);
      number = number + 1 == SplitShared<C>::kPieces ? 0 : number + 1;
    }
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_H_
