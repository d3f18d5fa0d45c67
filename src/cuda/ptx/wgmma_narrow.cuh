// wgmma (ptx/wgmma.cuh) with few columns: D[64, 16] (+)= A[64, 16] B[16, 16], A and B in shared memory with k
// innermost. A is read for little work here: 64 x 16 of it take as long as 32 columns of products.
#ifndef TILEWISE_CUDA_PTX_WGMMA_NARROW_H_
#define TILEWISE_CUDA_PTX_WGMMA_NARROW_H_

#include "cuda/ptx/wgmma.cuh"

namespace tilewise::ptx {

#define TILEWISE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TILEWISE_WGMMA_16(T, TYPE)                                                                     \
  template <>                                                                                          \
  struct Wgmma<16, T> {                                                                                \
    static __device__ __forceinline__ void ss(float (&d)[8], uint64_t a, uint64_t b, int add) {        \
      asm volatile(                                                                                    \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE \
          "." TYPE " {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 0, 0;\n}\n"                    \
          : TILEWISE_D4(0), TILEWISE_D4(4)                                                             \
          : "l"(a), "l"(b), "r"(add));                                                                 \
    }                                                                                                  \
  };

TILEWISE_WGMMA_16(__nv_bfloat16, "bf16")
TILEWISE_WGMMA_16(__half, "f16")

#undef TILEWISE_WGMMA_16
#undef TILEWISE_D4

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_WGMMA_NARROW_H_
