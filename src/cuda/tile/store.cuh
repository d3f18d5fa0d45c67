// Writing an accumulator fragment, two rows a thread, through registers alone: lanes of a quad exchange words until
// each has eight columns in a row, so any stride, alignment, row count and output type takes the same path.
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

// Eight columns of a row, from 32-bit words (16-bit pairs) or floats. `wide`: 16 bytes at a time.
template <typename Word, int kWords>
__device__ __forceinline__ void store_piece(const Word (&w)[kWords], void* g_row, int64_t first_byte, int columns,
                                            bool wide) {
  constexpr int kColumnBytes = kWords * 4 / 8;
  auto* g_piece = static_cast<uint8_t*>(g_row) + first_byte;
  if (wide) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      *reinterpret_cast<uint4*>(g_piece + 4 * i) =
          make_uint4(static_cast<uint32_t>(w[i]), w[i + 1], w[i + 2], w[i + 3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= columns) break;
    if constexpr (kColumnBytes == 4)
      *reinterpret_cast<uint32_t*>(g_piece + 4 * i) = w[i];
    else
      *reinterpret_cast<uint16_t*>(g_piece + 2 * i) = static_cast<uint16_t>(w[i / 2] >> (16 * (i % 2)));
  }
}

// Writes row half r of the fragment times `factor`, or zeros where `zero`. Lanes that must not write have
// columns 0.
template <typename T, int kCount>
__device__ __forceinline__ void store_row(const float (&r_o)[kCount], int r, float factor, bool zero, void* g_row,
                                          bool f32, bool wide, int columns, int lane) {
  static_assert(kCount % 16 == 0);
#pragma unroll
  for (int j = 0; j < kCount / 4; j += 4) {
    const int column = 8 * (j + lane % 4);
    float even[4], odd[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      even[i] = zero ? 0.0f : r_o[4 * (j + i) + 2 * r] * factor;
      odd[i] = zero ? 0.0f : r_o[4 * (j + i) + 2 * r + 1] * factor;
    }
    if (f32) {
      uint32_t a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = __float_as_uint(even[i]);
        b[i] = __float_as_uint(odd[i]);
      }
      transpose_quad(a, lane);
      transpose_quad(b, lane);
      const uint32_t w[8] = {a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3]};
      if (column < columns) store_piece(w, g_row, 4 * column, columns - column, wide);
    } else {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = ptx::pack<T>(even[i], odd[i]);
      transpose_quad(w, lane);
      if (column < columns) store_piece(w, g_row, 2 * column, columns - column, wide);
    }
  }
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_STORE_H_
