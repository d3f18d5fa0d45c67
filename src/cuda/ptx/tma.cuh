// The bulk tensor copy engine. One thread issues; bytes are counted on an mbarrier.
#ifndef TILEWISE_CUDA_PTX_TMA_H_
#define TILEWISE_CUDA_PTX_TMA_H_

#include "cuda/ptx/mbarrier.cuh"

namespace tilewise::ptx {

// 128 bytes, as the driver encodes it; must be a __grid_constant__ kernel parameter.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// What the L2 should do with the lines of a load.
enum class CacheHint : uint64_t {
  normal = 0x1000000000000000,
  evict_first = 0x12F0000000000000,
  evict_last = 0x14F0000000000000,
};

__device__ __forceinline__ void tma_prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// Elements outside the tensor arrive as zeros, and their bytes are counted too.
__device__ __forceinline__ void tma_load(void* s_to, const TensorMap* map, Mbarrier* barrier, CacheHint hint,
                                         int32_t column, int32_t row, int32_t head, int32_t batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(s_to)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head),
      "r"(batch), "l"(static_cast<uint64_t>(hint))
      : "memory");
}

// From shared memory, which fence_async_shared has made visible; elements outside the tensor are not written.
// In the thread's open bulk group.
__device__ __forceinline__ void tma_store(const TensorMap* map, const void* s_from, int32_t column,
                                          int32_t row, int32_t head, int32_t batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          reinterpret_cast<uint64_t>(map)),
      "r"(shared_address(s_from)), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// Adds `bytes` of fp32 from shared to global memory, both 16-byte aligned; in the thread's open bulk group.
__device__ __forceinline__ void bulk_add(float* g_to, const float* s_from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   reinterpret_cast<uint64_t>(g_to)),
               "r"(shared_address(s_from)), "r"(bytes)
               : "memory");
}
// Copies them instead.
__device__ __forceinline__ void bulk_store(float* g_to, const float* s_from, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(reinterpret_cast<uint64_t>(g_to)),
      "r"(shared_address(s_from)), "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until this thread's groups have read their source, or are done altogether.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_TMA_H_
