// Moving registers between warpgroups. Takes effect only under __launch_bounds__(threads, 1), with every
// warpgroup's role in one branch of a single if; ptxas says C7508 where it does not.
#ifndef TILEWISE_CUDA_PTX_REGISTERS_H_
#define TILEWISE_CUDA_PTX_REGISTERS_H_

#include <cstdint>

namespace tilewise::ptx {

template <int kCount>
__device__ __forceinline__ void release_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ __forceinline__ void take_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Reads that the compiler does not hoist: recomputing what hangs on the thread costs less than keeping it.
__device__ __forceinline__ int thread_afresh() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// The same of any value.
__device__ __forceinline__ int afresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Loads and stores after it stay there: read early, what a long row of steps needs would fill the registers.
__device__ __forceinline__ void in_order() { asm volatile("" ::: "memory"); }

// wgmma takes descriptors from uniform registers. What a warp reduces to one value the compiler keeps there;
// otherwise it moves both halves of every descriptor over, before every instruction.
__device__ __forceinline__ uint32_t uniform(uint32_t value) { return __reduce_or_sync(~0u, value); }

// True in one lane of a converged warp, the same one each time.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_REGISTERS_H_
