// Blocks of a cluster and each other's shared memory. Compute capability 9.0 and up.
//
// An address of the peer's is the same place of its shared memory. What the copy engine writes there is told
// to the peer's mbarrier and needs no further fence before wgmma or ordinary loads behind that barrier.
#ifndef TILEWISE_CUDA_PTX_CLUSTER_H_
#define TILEWISE_CUDA_PTX_CLUSTER_H_

#include "cuda/ptx/mbarrier.cuh"

namespace tilewise::ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// `here` of the block of that rank.
__device__ __forceinline__ uint32_t cluster_address(const void* here, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(rank));
  return there;
}

__device__ __forceinline__ uint32_t cluster_address(uint32_t s_here, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(s_here), "r"(rank));
  return there;
}

__device__ __forceinline__ void cluster_store(uint32_t there, float x, float y, float z, float w) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(x), "f"(y), "f"(z),
               "f"(w)
               : "memory");
}

// The cluster's own barrier in two halves, whole warps: an arrival that says no more than that the block has
// begun; one after which those that wait see what was written before it; the wait.
__device__ __forceinline__ void cluster_begin() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_acquire() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// All threads of the cluster that have not left; lanes of a warp may come one by one. Relaxed: it orders
// barriers initialised before mbarrier_init_fence(), and otherwise only who is still there.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// On another block's barrier. Relaxed: it says that this warp has read something, and releases no writes; a
// release would wait for all that it has on its way to memory.
__device__ __forceinline__ void cluster_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// From this block's shared memory to another's, multiples of 16 bytes; `barrier` is the other block's.
__device__ __forceinline__ void cluster_copy(uint32_t to, const void* s_from, uint32_t bytes,
                                             uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to),
      "r"(shared_address(s_from)), "r"(bytes), "r"(barrier)
      : "memory");
}

// Four bytes, counted on the other block's barrier.
__device__ __forceinline__ void cluster_send(uint32_t to, uint32_t value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to),
               "r"(value), "r"(barrier)
               : "memory");
}

// For what another block has released.
__device__ __forceinline__ void cluster_wait(Mbarrier* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni end;\n"
      "bra.uni again;\n"
      "end:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_CLUSTER_H_
