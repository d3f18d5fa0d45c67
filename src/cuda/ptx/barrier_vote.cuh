// A vote of the threads that meet at a named barrier (ptx/barrier.cuh).
#ifndef TILEWISE_CUDA_PTX_BARRIER_VOTE_H_
#define TILEWISE_CUDA_PTX_BARRIER_VOTE_H_

namespace tilewise::ptx {

// Whether all `threads` say yes: the same answer for each.
__device__ __forceinline__ bool barrier_all(int id, int threads, bool yes) {
  int all;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.s32 p, %3, 0;\n"
      "barrier.cta.red.and.pred q, %1, %2, p;\n"
      "selp.s32 %0, 1, 0, q;\n"
      "}\n"
      : "=r"(all)
      : "r"(id), "r"(threads), "r"(static_cast<int>(yes))
      : "memory");
  return all != 0;
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_BARRIER_VOTE_H_
