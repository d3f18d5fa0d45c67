// Forward attention on sm_90a: O = softmax(mask(score(Q K^T))) V, by tiles of queries and keys, with the
// online softmax, for one tile of 64 x kConsumers queries of one head at a time.
//
// Roles. Warpgroup 0: one thread hands out work and drives the copy engine. Warpgroups 1..: 64 queries each,
// products by wgmma, softmax in registers. The block is persistent: it draws tickets until there is no more
// work.
//
// Shared memory. Rings of Q buffers of 64 rows, of K tiles, of V tiles and of work descriptions.
//
// Invariants. Every full barrier has one arrival and the tile's bytes; every empty barrier counts the warps
// that read the buffer (of work: the threads). All warpgroups take as many turns, whatever their rows see.
#ifndef TILEWISE_CUDA_SM90_FORWARD_H_
#define TILEWISE_CUDA_SM90_FORWARD_H_

#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/forward_consumer.cuh"
#include "cuda/sm90/forward_producer.cuh"

namespace tilewise::sm90 {

template <typename C>
__device__ __forceinline__ void init_barriers(ForwardShared<C>& s) {
  for (int i = 0; i < C::kQueries; ++i) {
    ptx::mbarrier_init(&s.q_full[i], 1);
    ptx::mbarrier_init(&s.q_empty[i], 4);
  }
  for (int i = 0; i < C::kKeyStages; ++i) {
    ptx::mbarrier_init(&s.k_full[i], 1);
    ptx::mbarrier_init(&s.k_empty[i], 4 * C::kConsumers);
  }
  for (int i = 0; i < C::kValueStages; ++i) {
    ptx::mbarrier_init(&s.v_full[i], 1);
    ptx::mbarrier_init(&s.v_empty[i], 4 * C::kConsumers);
  }
  for (int i = 0; i < kWorkSlots; ++i) {
    ptx::mbarrier_init(&s.work_full[i], 1);
    ptx::mbarrier_init(&s.work_empty[i], 128 * C::kConsumers);
  }
  ptx::mbarrier_init_fence();
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1) forward(const __grid_constant__ ForwardArgs args) {
  ptx::grid_release();
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<ForwardShared<C>*>(s_bytes);
  if (threadIdx.x == 0) init_barriers<C>(shared);
  __syncthreads();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);
  if (group == 0) {
    ptx::release_registers<C::kProducerRegisters>();
    if (warp == 0 && ptx::elect_one()) {
      ptx::tma_prefetch_map(&args.q.map);
      ptx::tma_prefetch_map(&args.k.map);
      ptx::tma_prefetch_map(&args.v.map);
      // Nobody else touches global memory before work has been found.
      ptx::grid_wait();
      Producer<C> producer{args, shared};
      producer.run();
    }
  } else {
    ptx::take_registers<C::kConsumerRegisters>();
    Consumer<C> consumer{args, shared, group - 1, threadIdx.x % 32 == 0};
    consumer.run();
  }
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_H_
