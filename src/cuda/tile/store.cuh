// Writing an accumulator fragment, two rows a thread, through registers alone: lanes of a quad exchange words
// until each has eight columns in a row, so any stride, alignment, row count and output type takes the same
// path.
#ifndef TILEWISE_CUDA_TILE_STORE_H_
#define TILEWISE_CUDA_TILE_STORE_H_

#include "core/params.h"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/shared.cuh"

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

// 16-byte pieces, where base, strides and head_dim allow it. g_o is the first row's, the second is `step`
// elements further; rows that must not be written have 0 columns.
template <typename T, int kCount>
__device__ __forceinline__ void store_wide(const float (&r_o)[kCount], const float (&factor)[2], T* g_o,
                                           int64_t step, const int (&columns)[2], int lane) {
  static_assert(kCount % 16 == 0);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    T* g_row = g_o + r * step + 8 * (lane % 4);
#pragma unroll
    for (int j = 0; j < kCount / 4; j += 4) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[i] = ptx::pack<T>(r_o[4 * (j + i) + 2 * r] * factor[r], r_o[4 * (j + i) + 2 * r + 1] * factor[r]);
      transpose_quad(w, lane);
      if (8 * j + 8 * (lane % 4) < columns[r]) ptx::store_vector(g_row + 8 * j, w[0], w[1], w[2], w[3]);
    }
  }
}

// To shared memory, by a warp: its sixteen rows of a tile (tile/shared_tile.cuh) whose panels are
// kPanelBytes.
template <typename T, int kPanelBytes, int kCount>
__device__ __forceinline__ void store_shared(const float (&r_o)[kCount], const float (&factor)[2],
                                             uint8_t* s_rows, int lane) {
  const uint32_t s_row = ptx::shared_address(s_rows) + lane % 16 * 128;
  const uint32_t chunk = (lane / 16 ^ lane % 8) * 16;
#pragma unroll
  for (int j = 0; j < kCount / 8; ++j) {
    const float* r = r_o + 8 * j;
    ptx::stmatrix_x4(
        s_row + j / 4 * kPanelBytes + (chunk ^ j % 4 * 32), ptx::pack<T>(r[0] * factor[0], r[1] * factor[0]),
        ptx::pack<T>(r[2] * factor[1], r[3] * factor[1]), ptx::pack<T>(r[4] * factor[0], r[5] * factor[0]),
        ptx::pack<T>(r[6] * factor[1], r[7] * factor[1]));
  }
}

// Element by element.
template <typename U, int kCount>
__device__ __forceinline__ void store_narrow(const float (&r_o)[kCount], const float (&factor)[2], U* g_o,
                                             int64_t step, const int (&columns)[2], int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    U* g_row = g_o + r * step + 2 * (lane % 4);
    const int last = columns[r] - 2 * (lane % 4);
#pragma unroll
    for (int i = 2 * r; i < kCount; i += 4) {
      if (i / 4 * 8 < last) g_row[i / 4 * 8] = static_cast<U>(r_o[i] * factor[r]);
      if (i / 4 * 8 + 1 < last) g_row[i / 4 * 8 + 1] = static_cast<U>(r_o[i + 1] * factor[r]);
    }
  }
}

// The same, added to what is there.
template <int kCount>
__device__ __forceinline__ void store_sum(const float (&r_o)[kCount], const float (&factor)[2], float* g_o,
                                          int64_t step, const int (&columns)[2], int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float* g_row = g_o + r * step + 2 * (lane % 4);
    const int last = columns[r] - 2 * (lane % 4);
#pragma unroll
    for (int i = 2 * r; i < kCount; i += 4) {
      if (i / 4 * 8 < last) g_row[i / 4 * 8] += r_o[i] * factor[r];
      if (i / 4 * 8 + 1 < last) g_row[i / 4 * 8 + 1] += r_o[i + 1] * factor[r];
    }
  }
}

// A fragment of a gradient, times `scale`, to rows of `to` from element `at` on, the second 8 rows further.
template <typename T, int kCount>
__device__ __forceinline__ void store_gradient(const float (&r)[kCount], float scale, const RowTensor& to,
                                               int64_t at, bool wide, bool accumulate,
                                               const int (&columns)[2], int lane) {
  const float factor[2] = {scale, scale};
  const int64_t step = 8 * to.row_stride;
  if (wide)
    store_wide(r, factor, static_cast<T*>(to.data) + at, step, columns, lane);
  else if (to.dtype != DType::f32)
    store_narrow(r, factor, static_cast<T*>(to.data) + at, step, columns, lane);
  else if (accumulate)
    store_sum(r, factor, static_cast<float*>(to.data) + at, step, columns, lane);
  else
    store_narrow(r, factor, static_cast<float*>(to.data) + at, step, columns, lane);
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_STORE_H_
