// Backward attention on sm_90a for a tile of keys of one head at a time: dK, dV in registers over all queries
// that see it, dQ added to fp32 sums in memory.
//
// Roles. Warpgroup 0: one thread drives the copy engine, one warp or two bring lse and D of the query rows,
// one thread hands out work, and, ordered, one adds dQ or keeps its turns. Warpgroups 1 and 2 compute by
// wgmma, five products in all: each 64 keys of the tile with P and dS in registers (backward_consumer.cuh)
// or, for wide heads, one dV and the other dK of the same 64 (backward_wide_consumer.cuh). The block is
// persistent: it draws tickets until there is no more work. The query heads of a key head are walked one
// after the other, so that no sum of dK or dV leaves the registers.
//
// Shared memory. K and V of the tile; rings of Q and dO with their rows' lse and D; a ring of dS tiles, which
// both warpgroups read; where it does not go straight to memory, a piece of dQ for each warp.
//
// Invariants. Every full barrier of Q has an arrival for the copy and one for each warp that brings rows;
// ds_full and every empty barrier count warps. All consumers run the same steps.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_H_
#define TILEWISE_CUDA_SM90_BACKWARD_H_

#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/backward_consumer.cuh"
#include "cuda/sm90/backward_producer.cuh"
#include "cuda/sm90/backward_storer.cuh"
#include "cuda/sm90/backward_wide_consumer.cuh"

namespace tilewise::sm90 {

template <typename C>
__device__ __forceinline__ void init_barriers(SharedOf<C>& s) {
  constexpr int kGroup = 4 * ptx::kWarpArrivals, kWarps = kGroup * C::kConsumers;
  constexpr int kRowWarps = C::kRowWarps * ptx::kWarpArrivals;
  ptx::mbarrier_init(&s.k_full, 1);
  ptx::mbarrier_init(&s.v_full, 1);
  ptx::mbarrier_init(&s.k_empty, kWarps);
  ptx::mbarrier_init(&s.v_empty, C::kWide ? kGroup : kWarps);
  for (int i = 0; i < C::kQStages; ++i) {
    ptx::mbarrier_init(&s.q_full[i], 1 + kRowWarps);
    ptx::mbarrier_init(&s.q_empty[i], kWarps);
  }
  for (int i = 0; i < C::kOStages; ++i) {
    ptx::mbarrier_init(&s.dout_full[i], 1);
    ptx::mbarrier_init(&s.dout_empty[i], kWarps);
  }
  for (int i = 0; i < C::kScoreStages; ++i) {
    ptx::mbarrier_init(&s.ds_full[i], C::kWide ? kGroup : kWarps);
    ptx::mbarrier_init(&s.ds_empty[i], kWarps * C::kBlocks);
  }
  if constexpr (C::kWide) {
    ptx::mbarrier_init(&s.p_full, kGroup);
    ptx::mbarrier_init(&s.p_empty, kGroup);
    for (int i = 0; i < kTurnStages; ++i) {
      ptx::mbarrier_init(&s.turn[i], 1);
      ptx::mbarrier_init(&s.added[i], kWarps);
    }
  } else {
    for (int i = 0; i < C::kSumStages; ++i) {
      ptx::mbarrier_init(&s.dq_full[i], kWarps);
      ptx::mbarrier_init(&s.dq_empty[i], 1);
    }
  }
  for (int i = 0; i < kWorkSlots; ++i) {
    ptx::mbarrier_init(&s.work_full[i], 1);
    ptx::mbarrier_init(&s.work_empty[i], kWarps + 1 + kRowWarps + C::kStorers);
  }
  if constexpr (C::kBlocks == 2) {
    ptx::mbarrier_init(&s.peer_k_full, 1);
    for (auto& full : s.peer_ds_full) ptx::mbarrier_init(&full, 1);
    ptx::mbarrier_init(&s.ticket_full, 1);
    ptx::mbarrier_init(&s.ticket_empty, 1);
  }
  ptx::mbarrier_init(&s.nearly_done, 1);
  ptx::mbarrier_init_fence();
}

template <typename C>
__device__ __forceinline__ void run_roles(const BackwardArgs& args, SharedOf<C>& shared) {
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (group == 0) {
    ptx::release_registers<C::kProducerRegisters>();
    if (warp == 0 && ptx::elect_one()) {
      ptx::tma_prefetch_map(&args.q.map);
      ptx::tma_prefetch_map(&args.dout.map);
      ptx::tma_prefetch_map(&args.k.map);
      ptx::tma_prefetch_map(&args.v.map);
      BackwardProducer<C> producer{args, shared};
      producer.run();
    } else if (warp == 1 || warp == C::kRowWarps) {
      RowReader<C> reader{args, shared, 32 * (warp - 1) + lane};
      reader.run();
    } else if (warp == 2) {
      if constexpr (C::kStorers > 0) {
        if (ptx::elect_one()) {
          std::conditional_t<C::kWide, TurnKeeper<C>, SumStorer<C>> storer{args, shared};
          storer.run();
        }
      }
    } else if (warp == 3 && ptx::elect_one()) {
      Scheduler<C> scheduler{args, shared};
      scheduler.run();
    }
  } else {
    ptx::take_registers<C::kConsumerRegisters>();
    if constexpr (!C::kWide) {
      BackwardConsumer<C> consumer{args, shared, group - 1, warp - 4, lane};
      consumer.run();
    } else if (group == 1) {
      WideConsumer<C, true> consumer{args, shared, warp - 4, lane, static_cast<int>(rank_in_pair<C>())};
      consumer.run();
    } else {
      WideConsumer<C, false> consumer{args, shared, warp - 8, lane, static_cast<int>(rank_in_pair<C>())};
      consumer.run();
    }
  }
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1) backward(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<SharedOf<C>*>(s_bytes);
  if (threadIdx.x == 0) init_barriers<C>(shared);
  __syncthreads();
  run_roles<C>(args, shared);
}

template <typename C>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(C::kThreads, 1)
    backward_pair(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<SharedOf<C>*>(s_bytes);
  if (threadIdx.x == 0) init_barriers<C>(shared);
  ptx::cluster_sync();
  run_roles<C>(args, shared);
  // Shared memory of a block that has left is no longer there for its peer's copies and arrivals.
  __syncwarp();
  ptx::cluster_sync();
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_H_
