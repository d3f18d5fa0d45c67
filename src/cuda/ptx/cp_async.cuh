// Asynchronous copies of a thread from global to shared memory: compute capability 8.0 and up.
#ifndef TILEWISE_CUDA_PTX_CP_ASYNC_H_
#define TILEWISE_CUDA_PTX_CP_ASYNC_H_

#include <cstdint>

namespace tilewise::ptx {

// 16 bytes, both addresses multiples of 16. Of `from` only the first `bytes` are read, the rest is zero.
__device__ __forceinline__ void cp_async_16(uint32_t s_to, const void* g_from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(s_to), "l"(g_from), "r"(bytes)
               : "memory");
}

// 4 bytes, both addresses multiples of 4.
__device__ __forceinline__ void cp_async_4(uint32_t s_to, const void* g_from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(s_to), "l"(g_from), "r"(bytes)
               : "memory");
}

// Closes this thread's group of copies. Groups end in order.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but the newest kPending groups are there, for this thread alone: a barrier tells the others.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_CP_ASYNC_H_
