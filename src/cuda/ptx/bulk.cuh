// Bulk copies from global to shared memory, in one piece: compute capability 9.0 and up. One thread issues;
// bytes are counted on an mbarrier.
#ifndef TILEWISE_CUDA_PTX_BULK_H_
#define TILEWISE_CUDA_PTX_BULK_H_

#include "cuda/ptx/mbarrier.cuh"

namespace tilewise::ptx {

// Addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void bulk_load(void* s_to, const void* g_from, uint32_t bytes, Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(s_to)),
      "l"(g_from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_BULK_H_
