// Named barriers (16 a block, 0 is __syncthreads) and proxy fences.
#ifndef TILEWISE_CUDA_PTX_BARRIER_H_
#define TILEWISE_CUDA_PTX_BARRIER_H_

#include <cstdint>

namespace tilewise::ptx {

// `threads` counts those that arrive and those that wait; a multiple of 32.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Between this thread's ordinary accesses to shared memory and those of wgmma or the copy engine; a barrier
// must follow for the accesses of other threads.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_BARRIER_H_
