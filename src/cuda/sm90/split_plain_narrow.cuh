// Quantised K and V in the plain split forward: one byte an element, widened to fp16 between shared memory
// and the products. sm80/split_product.cuh says how rows of Q and of O are scaled for it.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_NARROW_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_NARROW_H_

#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm90/split_plain_args.cuh"
#include "cuda/tile/narrow.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

constexpr float kLeastUnit = 1.17549435e-38f;  // of O

// The power of 2 above a number that is not negative.
__device__ __forceinline__ float power_above(float x) {
  return __uint_as_float(min((__float_as_uint(x) & 0x7f800000u) + 0x00800000u, 0x7f800000u));
}

// Q in registers to fp16, each of the lane's two rows divided by a power of 2.
template <typename C>
__device__ __forceinline__ void widen_q(uint32_t (&r_q)[C::kDim / 16][4], float (&q_unit)[2]) {
  constexpr bool kHalf = std::is_same_v<typename C::Element, __half>;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < C::kDim / 8; ++i) {
      const float2 x = ptx::unpack(r_q[i / 2][r + i % 2 * 2], kHalf);
      largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    // Not where the inverse or a number is not finite: such rows are redone.
    q_unit[r] = largest > 1e-30f && largest < 1e30f ? power_above(largest) : 1.0f;
    const float inverse = 1.0f / q_unit[r];
#pragma unroll
    for (int i = 0; i < C::kDim / 8; ++i) {
      uint32_t& word = r_q[i / 2][r + i % 2 * 2];
      const float2 x = ptx::unpack(word, kHalf);
      word = ptx::pack<__half>(x.x * inverse, x.y * inverse);
    }
  }
}

template <typename C>
__device__ __forceinline__ void narrow_scores(float (&r_s)[C::kKeys / 2],
                                              const uint32_t (&r_q)[C::kDim / 16][4], uint32_t s_k) {
  using Tile = tile::SharedTile<C::kKeys, C::kRowBytes / 2>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < C::kDim / 16; k += 2) {
#pragma unroll
    for (int h = 0; h < C::kKeys / 16; ++h) {
      uint32_t b[4];  // keys 0 to 7 and 8 to 15 of 16 columns, then of the next 16
      ptx::ldmatrix_x4(b, s_k + Tile::chunk_offset(16 * h + lane % 16, k + lane / 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const tile::TwoPairs pairs = tile::widen<typename C::Stored, false>(b[i]);
        ptx::mma_16x8x16<__half>(r_s + 8 * h + 4 * (i % 2), r_q[k + i / 2], pairs.first, pairs.second);
      }
    }
  }
}

template <typename C>
__device__ __forceinline__ void narrow_values(float (&r_o)[C::kDim / 2], const uint32_t (&r_p)[C::kKeys / 4],
                                              uint32_t s_v) {
  using Tile = tile::SharedTile<C::kKeys, C::kRowBytes / 2>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < C::kKeys / 16; ++h) {
#pragma unroll
    for (int n = 0; n < C::kDim / 16; n += 2) {
      uint32_t b[4];  // keys 0 to 7 and 8 to 15 of 16 columns, then of the next 16
      ptx::ldmatrix_x4_transposed(b, s_v + Tile::chunk_offset(16 * h + lane % 16, n + lane / 16));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const tile::TwoPairs low = tile::widen<typename C::Stored, true>(b[2 * i]);
        const tile::TwoPairs high = tile::widen<typename C::Stored, true>(b[2 * i + 1]);
        float* to = r_o + 8 * (n + i);  // even columns, odd columns
        ptx::mma_16x8x16<__half>(to, r_p + 4 * h, low.first, high.first);
        ptx::mma_16x8x16<__half>(to + 4, r_p + 4 * h, low.second, high.second);
      }
    }
  }
}

// Weights to what V's elements are multiplied by, in units of O, which rise where a scale is larger.
template <typename C>
__device__ __forceinline__ void scale_weights(float (&weight)[C::kKeys / 2], float (&r_o)[C::kDim / 2],
                                              float& unit, const float* s_scale) {
  constexpr int kScores = C::kKeys / 2;
  const int lane = threadIdx.x % 32;
  float scale[kScores / 2], largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    scale[i] = s_scale ? s_scale[2 * (lane % 4) + i % 2 + i / 2 * 8] : 1.0f;
    largest = fmaxf(largest, fabsf(scale[i]));
  }
  if (__any_sync(~0u, largest > unit)) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit));
    const float risen = power_above(largest), fall = unit / risen;
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) r_o[i] *= fall;
    unit = risen;
  }
  const float inverse = 1.0f / unit;
#pragma unroll
  for (int i = 0; i < kScores; ++i) weight[i] *= scale[i / 4 * 2 + i % 2] * inverse;
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_NARROW_H_
