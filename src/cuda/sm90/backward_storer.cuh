// Ordered, one thread adds dQ tiles to their sums in memory, so that no consumer waits for a turn: it takes a
// tile that all consumers have written to shared memory, waits until the key tiles before have added theirs,
// adds, and lets the next key tile go. The turn is awaited before the tile: it has mostly come by then.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_STORER_H_
#define TILEWISE_CUDA_SM90_BACKWARD_STORER_H_

#include "cuda/ptx/global.cuh"
#include "cuda/sm90/backward_args.cuh"
#include "cuda/sm90/backward_config.cuh"

namespace tilewise::sm90 {

template <typename C>
struct SumStorer {
  const BackwardArgs& args;
  SharedOf<C>& shared;
  Ring<C::kSumStages> dq;
  Ring<kWorkSlots> slot;

  __device__ __forceinline__ void run() {
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::KeyWork& w = shared.work[slot.at()];
      if (w.batch < 0) return;
      if (args.g_dq) {
#pragma unroll 1
        for (tile::QueryWalk<true> at(w, args.queries_per_key_head); at.left >= 0; at.next(w)) add(w, at);
      }
      ptx::mbarrier_arrive(&shared.work_empty[slot.at()]);
      slot.advance();
    }
  }

 private:
  __device__ __forceinline__ void add(const tile::KeyWork& w, const tile::QueryWalk<true>& at) {
    const int64_t row = at.head * args.scratch_rows.rows + w.scratch_row + at.tile * C::kTileM;
    uint32_t* g_turn = args.g_turns + row / C::kTileM;
    const uint32_t turn = w.tiles_before<C::kTileM, C::kTileN>(at.tile);
    while (ptx::load_acquire(g_turn) != turn) {
    }
    ptx::mbarrier_wait(&shared.dq_full[dq.at()], dq.phase());
    ptx::bulk_add(args.g_dq + row * C::kDim, shared.dq[dq.at()], C::kTileFloats * sizeof(float));
    ptx::bulk_commit();
    ptx::bulk_wait_read();
    ptx::mbarrier_arrive(&shared.dq_empty[dq.at()]);
    dq.advance();
    ptx::bulk_wait();
    ptx::add_release(g_turn, 1);
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_STORER_H_
