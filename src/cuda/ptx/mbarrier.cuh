// mbarriers: a phase ends when `count` threads have arrived and all expected bytes have landed.
// Who waits first for data waits on parity 0; who waits first for free space waits on parity 1.
#ifndef TILEWISE_CUDA_PTX_MBARRIER_H_
#define TILEWISE_CUDA_PTX_MBARRIER_H_

#include "cuda/ptx/shared.cuh"

namespace tilewise::ptx {

using Mbarrier = uint64_t;  // in shared memory

__device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}

// Makes inits visible to the copy engine; a block barrier must follow before other threads use them.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Releases only what the arriving thread itself wrote.
__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect(Mbarrier* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// The lanes of a warp leave together, so branches are uniform; otherwise each wait ends in a reconvergence.
__device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni end;\n"
      "bra.uni again;\n"
      "end:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_MBARRIER_H_
