// Ordered, one thread sees to it that key tiles add to dQ in turn, so that no consumer polls or fences.
//
// The first key tile of a tile of dQ stores: nobody has made zeros.
//
// SumStorer adds itself: it takes a tile that all consumers have written to shared memory, waits until the
// key tiles before have added theirs, adds, and lets the next key tile go. It asks for the next turn while an
// addition is on its way. TurnKeeper is for wide heads, whose consumers add from registers: it tells them
// when a tile's turn has come, and lets the next key tile go when all of them have added. It is a tile ahead.
//
// Hazard: the additions that TurnKeeper releases are other threads'. They are ordered before its fence by the
// barrier at which it meets them.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_STORER_H_
#define TILEWISE_CUDA_SM90_BACKWARD_STORER_H_

#include "cuda/ptx/global.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier_look.cuh"
#include "cuda/sm90/backward_args.cuh"
#include "cuda/sm90/backward_wide_config.cuh"

namespace tilewise::sm90 {

template <typename C>
struct SumStorer {
  const BackwardArgs& args;
  SharedOf<C>& shared;
  Ring<C::kSumStages> dq;
  Ring<kWorkSlots> slot;

  __device__ __forceinline__ void run() {
    ptx::grid_wait();
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::KeyWork& w = shared.work[slot.at()];
      if (w.batch < 0) return;
      if (args.g_dq && w.tile_first < w.tile_last) add_tiles(w);
      ptx::mbarrier_arrive(&shared.work_empty[slot.at()]);
      slot.advance();
    }
  }

 private:
  __device__ __forceinline__ int64_t row_of(const tile::KeyWork& w, const tile::QueryWalk<true>& at) const {
    return at.head * args.scratch_rows.rows + w.scratch_row + at.tile * C::kTileM;
  }

  __device__ __forceinline__ void add_tiles(const tile::KeyWork& w) {
    tile::QueryWalk<true> at(w, args.queries_per_key_head);
    uint32_t turn = ptx::load_acquire(args.g_turns + row_of(w, at) / C::kTileM);
    for (;;) {
      const uint32_t mine = w.tiles_before<C::kTileM, C::kTileN>(at.tile);
      while (turn != mine) turn = ptx::load_acquire(args.g_turns + row_of(w, at) / C::kTileM);
      ptx::mbarrier_wait(&shared.dq_full[dq.at()], dq.phase());
      float* g_sums = args.g_dq + row_of(w, at) * C::kDim;
      if (mine == 0)
        ptx::bulk_store(g_sums, shared.dq[dq.at()], C::kTileFloats * sizeof(float));
      else
        ptx::bulk_add(g_sums, shared.dq[dq.at()], C::kTileFloats * sizeof(float));
      ptx::bulk_commit();
      ptx::bulk_wait_read();
      ptx::mbarrier_arrive(&shared.dq_empty[dq.at()]);
      dq.advance();
      uint32_t* g_done = args.g_turns + row_of(w, at) / C::kTileM;
      const bool last = at.left == 0;
      if (!last) {
        at.next(w, args.queries_per_key_head);
        turn = ptx::load_acquire(args.g_turns + row_of(w, at) / C::kTileM);
      }
      ptx::bulk_wait();
      ptx::add_release(g_done, 1);
      if (last) return;
    }
  }
};

template <typename C>
struct TurnKeeper {
  const BackwardArgs& args;
  SharedOf<C>& shared;
  Ring<kTurnStages> turn, added;
  Ring<kWorkSlots> slot;
  uint32_t* g_open = nullptr;  // the turn that the consumers have, if any

  __device__ __forceinline__ void run() {
    ptx::grid_wait();
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::KeyWork& w = shared.work[slot.at()];
      if (w.batch < 0) return;
      if (args.g_dq && w.tile_first < w.tile_last) keep_turns(w);
      ptx::mbarrier_arrive(&shared.work_empty[slot.at()]);
      slot.advance();
    }
  }

 private:
  __device__ __forceinline__ void keep_turns(const tile::KeyWork& w) {
    for (tile::QueryWalk<true> at(w, args.queries_per_key_head); at.left >= 0;
         at.next(w, args.queries_per_key_head)) {
      const int64_t tile = (at.head * args.scratch_rows.rows + w.scratch_row) / C::kTileM + at.tile;
      uint32_t* g_turn = args.g_turns + tile * C::kBlocks + rank_in_pair<C>();
      const uint32_t mine = w.tiles_before<C::kTileM, C::kTileN>(at.tile);
      while (ptx::load_acquire(g_turn) != mine)
        if (g_open && ptx::mbarrier_ended(&shared.added[added.at()], added.phase())) end_turn();
      ptx::mbarrier_arrive(&shared.turn[turn.at()]);
      turn.advance();
      if (g_open) await_end();
      g_open = g_turn;
    }
    await_end();
  }

  __device__ __forceinline__ void await_end() {
    ptx::mbarrier_wait(&shared.added[added.at()], added.phase());
    end_turn();
  }

  __device__ __forceinline__ void end_turn() {
    ptx::fence_gpu();
    ptx::add_release(g_open, 1);
    added.advance();
    g_open = nullptr;
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_STORER_H_
