// Four 8 x 8 matrices of 16-bit elements from shared memory, as mma takes them, and to it, by a whole warp.
// Lane l gives the address of row l % 8 of matrix l / 8, a multiple of 16 bytes; word i is of matrix i:
// elements 2q, 2q + 1 of row g (g = lane / 4, q = lane % 4), transposed elements g of rows 2q, 2q + 1.
#ifndef TILEWISE_CUDA_PTX_MATRIX_H_
#define TILEWISE_CUDA_PTX_MATRIX_H_

#include <cstdint>

namespace tilewise::ptx {

// volatile and "memory": they stay behind the barrier that made the data visible.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// One matrix of 8 x 8, transposed between the lanes' registers.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t word) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(word));
  return transposed;
}

// Compute capability 9.0 and up.
__device__ __forceinline__ void stmatrix_x4(uint32_t s_row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(s_row), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_MATRIX_H_
