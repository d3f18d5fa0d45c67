// Fragments of 8x8 matrices of 16-bit elements to shared memory, by a whole warp.
#ifndef TILEWISE_CUDA_PTX_MATRIX_H_
#define TILEWISE_CUDA_PTX_MATRIX_H_

#include <cstdint>

namespace tilewise::ptx {

// Four matrices; lane l gives the address of row l % 8 of matrix l / 8, and holds two neighbours of row l / 4
// of each.
__device__ __forceinline__ void store_matrices(uint32_t s_row, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(s_row), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_MATRIX_H_
