// Matrix products of one warp, 16 x 8 x 16 in 16 bits with fp32 sums: compute capability 8.0 and up.
#ifndef TILEWISE_CUDA_PTX_MMA_H_
#define TILEWISE_CUDA_PTX_MMA_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tilewise::ptx {

// d[16, 8] += a[16, 16] b[16, 8]. With g = lane / 4 and q = lane % 4: d holds (g, 2q), (g, 2q + 1), (g + 8,
// 2q), (g + 8, 2q + 1); the words of a hold (g, 2q..), (g + 8, 2q..), (g, 2q + 8..), (g + 8, 2q + 8..); those
// of b rows 2q.. and 2q + 8.. of column g.
template <typename T>
__device__ __forceinline__ void mma_16x8x16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void mma_16x8x16<__nv_bfloat16>(float* d, const uint32_t* a, uint32_t b0,
                                                           uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_16x8x16<__half>(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_MMA_H_
