// What happens to a tile of raw scores before the softmax, apart from the common case: scale, softcap, ALiBi,
// band. The fragment's columns are compile-time constants; what differs between lanes is taken off the
// limits.
#ifndef TILEWISE_CUDA_TILE_SCORE_H_
#define TILEWISE_CUDA_TILE_SCORE_H_

#include "core/softmax.h"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::tile {

constexpr int fragment_column(int i) { return i / 4 * 8 + i % 2; }

// How many of a lane's elements of one row, in blocks of 32 from `begin` on, lie in columns below `limit`, as
// as many bits from the lowest on.
__device__ __forceinline__ uint32_t elements_below(int limit, int begin) {
  const int count = max(limit, 0) / 8 * 2 + min(max(limit, 0) % 8, 2) - begin;
  return count >= 32 ? ~0u : (1u << max(count, 0)) - 1;
}

// Removes what the band and the lengths hide. `row` is of the fragment's first row, `key` of its first
// column. What a row sees lies together: bits say which elements, and the compiler takes seven at a time to
// predicates (kByBits), where two comparisons an element take three instructions.
template <bool kByBits = false, int kCount>
__device__ __forceinline__ void hide(float (&r_s)[kCount], const Work& w, int row, int key, int lane_column) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int last = w.hi(row + 8 * r) - key - lane_column;
    const int first = w.lo(row + 8 * r) - key - lane_column;
    if constexpr (kByBits) {
#pragma unroll
      for (int begin = 0; begin < kCount / 2; begin += 32) {
        const uint32_t seen = elements_below(last, begin) & ~elements_below(first, begin);
#pragma unroll
        for (int e = 0; e < 32 && begin + e < kCount / 2; ++e) {
          float& s = r_s[4 * ((begin + e) / 2) + 2 * r + e % 2];
          if (!(seen & 1u << e)) s = kMinusInfinity;
        }
      }
    } else {
#pragma unroll
      for (int i = 2 * r; i < kCount; i += 4) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = fragment_column(i + c);
          if (column >= last || column < first) r_s[i + c] = kMinusInfinity;
        }
      }
    }
  }
}

// tanhf branches per element. Small arguments take the series, where 1 - 2 / (1 + exp(2 x)) loses digits.
__device__ __forceinline__ float tanh_branchless(float x) {
  const float square = x * x;
  const float series = x + x * square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315)));
  const float power = ptx::exp2_approx(2.0f * kLog2E * x);
  const float bounded = power > 1e30f ? 1e30f : power;  // not fminf: NaN stays NaN
  return square < 0.0625f ? series : 1.0f - __fdividef(2.0f, 1.0f + bounded);
}

// What needs shape(): a softcap, ALiBi or a scale that is not positive.
inline bool is_shaped(const ForwardParams& p) {
  return p.softcap > 0.0f || p.alibi_slopes != nullptr || !(p.scale > 0.0f);
}

// Scores in natural units, of calls that are shaped.
template <int kCount>
__device__ __forceinline__ void shape(float (&r_s)[kCount], float scale, float softcap, float slope,
                                      int row_position, float beyond, int key, int lane_column) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) r_s[i] *= scale;
  if (softcap > 0.0f) {
    const float inverse = 1.0f / softcap;
#pragma unroll
    for (int i = 0; i < kCount; ++i) r_s[i] = softcap * tanh_branchless(r_s[i] * inverse);
  }
  if (slope != 0.0f) {
    const int distance = row_position - key - lane_column;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      r_s[i] -= slope * (fabsf(static_cast<float>(distance + 8 * (i / 2 % 2) - fragment_column(i))) + beyond);
  }
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_SCORE_H_
