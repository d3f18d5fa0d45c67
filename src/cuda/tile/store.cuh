// Writing one warp's 16 rows of an accumulator fragment: two rows a thread, through registers alone, so that any
// stride, alignment, row count and output type takes the same path.
#ifndef TILEWISE_CUDA_TILE_STORE_H_
#define TILEWISE_CUDA_TILE_STORE_H_

#include "core/params.h"
#include "cuda/ptx/math.cuh"

namespace tilewise::tile {

// Lane i of a quad gives word i of blocks 0..3; lane q receives the four words of block q.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool high = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t got = __shfl_xor_sync(~0u, high ? w[i] : w[i | bit], bit);
      if (high)
        w[i] = got;
      else
        w[i | bit] = got;
    }
  }
}

// Rows of 16-byte pieces: base, strides and head_dim are multiples of 16 bytes.
template <typename T, int kCount>
__device__ __forceinline__ void store_rows_wide(const float (&r_o)[kCount], T* g_row[2], const bool (&wanted)[2],
                                                int head_dim, int lane) {
  static_assert(kCount % 16 == 0);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kCount / 4; j += 4) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = ptx::pack<T>(r_o[4 * (j + i) + 2 * r], r_o[4 * (j + i) + 2 * r + 1]);
      transpose_quad(w, lane);
      const int column = 8 * (j + lane % 4);
      if (wanted[r] && column < head_dim)
        *reinterpret_cast<uint4*>(g_row[r] + column) = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

template <typename U, int kCount>
__device__ __forceinline__ void store_rows(const float (&r_o)[kCount], U* g_row[2], const bool (&wanted)[2],
                                           int head_dim, int lane) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int r = i / 2 % 2, column = i / 4 * 8 + i % 2 + 2 * (lane % 4);
    if (wanted[r] && column < head_dim) g_row[r][column] = static_cast<U>(r_o[i]);
  }
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_STORE_H_
