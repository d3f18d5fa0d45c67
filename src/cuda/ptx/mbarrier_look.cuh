// Looking at an mbarrier without waiting.
#ifndef TILEWISE_CUDA_PTX_MBARRIER_LOOK_H_
#define TILEWISE_CUDA_PTX_MBARRIER_LOOK_H_

#include "cuda/ptx/mbarrier.cuh"

namespace tilewise::ptx {

// Whether the phase of that parity has ended.
__device__ __forceinline__ bool mbarrier_ended(Mbarrier* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_MBARRIER_LOOK_H_
