// Forward for few queries and many keys, by tiles of 64 rows, on 9.0: groups of many heads, several queries,
// head dims above 128. How keys are cut, scheduled and joined is sm80/split.cuh's; here all warps of a block
// work on the same keys.
//
// Roles. A warpgroup copies keys into a ring of stages (cp.async), across the ends of units. Two multiply:
// scores and weights of a step of kKeys keys are one's, of the next step the other's, and each has half of
// O's columns (split_wide_turns.cuh).
//
//   S = Q K^T     wgmma
//   P = 2^(S - m) m the running maximum of the row; O falls where it rises
//   O += P V      wgmma, P rounded in registers
//
// A stage that is filled, or read, is told of by mbarriers.
//
// Memory. Shared: Q, 64 rows; a ring of stages, K and V of a step, swizzled for wgmma; a step's weights.
// Where values are the beginning of their keys (latent attention: v is k's storage) a stage is K alone.
// Scratch and counters as in sm80/split.cuh; a part has as many rows as the problem's groups, up to 64.
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
    multiply_in_turns(args, shared);
  }
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_H_
