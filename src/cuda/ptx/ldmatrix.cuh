// Four 8 x 8 matrices of 16-bit elements from shared memory, as mma takes them. Lane l gives the address of
// row l % 8 of matrix l / 8, a multiple of 16 bytes; word i is of matrix i: elements 2q, 2q + 1 of row g (g =
// lane / 4, q = lane % 4), transposed elements g of rows 2q, 2q + 1.
#ifndef TILEWISE_CUDA_PTX_LDMATRIX_H_
#define TILEWISE_CUDA_PTX_LDMATRIX_H_

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

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_LDMATRIX_H_
