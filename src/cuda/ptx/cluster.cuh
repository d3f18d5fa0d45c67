// Blocks of a cluster: their barrier, and stores into each other's shared memory. Compute capability 9.0.
#ifndef TILEWISE_CUDA_PTX_CLUSTER_H_
#define TILEWISE_CUDA_PTX_CLUSTER_H_

#include <cstdint>

namespace tilewise::ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// An arrival that says no more than that the block has begun.
__device__ __forceinline__ void cluster_begin() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// Every thread of every block arrives; what it wrote before is seen by those that wait.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where block `rank` has what this block has at an address of shared memory.
__device__ __forceinline__ uint32_t cluster_address(uint32_t s_address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(s_address), "r"(rank));
  return there;
}

__device__ __forceinline__ void cluster_store(uint32_t there, float x, float y, float z, float w) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(x), "f"(y), "f"(z),
               "f"(w)
               : "memory");
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_CLUSTER_H_
