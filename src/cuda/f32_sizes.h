// Scratch of the fp32 rows: q, k and v (backward: and dO) as two fp16 numbers each, and of every row what it
// was scaled by; of backward also D, and a word for each tile that may be left to plain fp32.
#ifndef TILEWISE_CUDA_F32_SIZES_H_
#define TILEWISE_CUDA_F32_SIZES_H_

#include <cstdint>

namespace tilewise::cuda {

// `rows`: of all sequences, times heads.
constexpr int64_t f32_row_bytes(int dim) { return int64_t{dim} * 4 + 8; }

// Of one tensor; the next begins at a multiple of 256 again.
constexpr int64_t f32_part_bytes(int dim, int64_t rows) {
  return (rows * f32_row_bytes(dim) + 255) / 256 * 256;
}

constexpr int64_t f32_scratch_bytes(int dim, int64_t rows_q, int64_t rows_kv) {
  return f32_part_bytes(dim, rows_q) + 2 * f32_part_bytes(dim, rows_kv);
}

constexpr int64_t f32_backward_part_bytes(int dim, int64_t rows_q, int64_t rows_kv) {
  return 2 * f32_part_bytes(dim, rows_q) + 2 * f32_part_bytes(dim, rows_kv);
}

// Of `heads` heads of sequences of `rows`, in tiles of 64.
constexpr int64_t f32_mark_bytes(int64_t heads, int64_t rows) {
  return (heads * ((rows + 63) / 64) * 4 + 255) / 256 * 256;
}

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_F32_SIZES_H_
