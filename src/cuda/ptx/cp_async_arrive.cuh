// Asynchronous copies (ptx/cp_async.cuh) that tell of themselves: compute capability 8.0 and up.
#ifndef TILEWISE_CUDA_PTX_CP_ASYNC_ARRIVE_H_
#define TILEWISE_CUDA_PTX_CP_ASYNC_ARRIVE_H_

#include "cuda/ptx/mbarrier.cuh"

namespace tilewise::ptx {

// This thread arrives, one of the barrier's count, when all copies that it has issued so far are there.
__device__ __forceinline__ void cp_async_arrive(Mbarrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_CP_ASYNC_ARRIVE_H_
