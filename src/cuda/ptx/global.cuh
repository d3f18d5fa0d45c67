// Words and vectors in global memory: those that several blocks write, and stores of a width that is meant.
#ifndef TILEWISE_CUDA_PTX_GLOBAL_H_
#define TILEWISE_CUDA_PTX_GLOBAL_H_

#include <cstdint>

namespace tilewise::ptx {

// What the writer released with the value is visible after it.
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* g_from) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(reinterpret_cast<uint64_t>(g_from))
               : "memory");
  return value;
}

__device__ __forceinline__ void add_release(uint32_t* g_to, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(reinterpret_cast<uint64_t>(g_to)), "r"(value)
               : "memory");
}

// Four sums at once, 16-byte aligned.
__device__ __forceinline__ void add_vector(float* g_to, float a, float b, float c, float d) {
  asm volatile(
      "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint64_t>(g_to)),
      "f"(a), "f"(b), "f"(c), "f"(d)
      : "memory");
}

// 16 bytes at once, 16-byte aligned. The compiler takes a store through a pointer to uint4 apart at times,
// where it stands behind a condition: four stores of 4 bytes each move four times the sectors.
__device__ __forceinline__ void store_vector(void* g_to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint64_t>(g_to)), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Orders this thread's writes before what it, or who meets it at a barrier, releases afterwards.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Adds; what was there before. Releases what the thread wrote, and was given by a barrier, to who adds later,
// and acquires theirs who added before.
__device__ __forceinline__ uint32_t add_acquire_release(uint32_t* g_word, uint32_t x) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(g_word), "r"(x)
               : "memory");
  return before;
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_GLOBAL_H_
