// Online softmax on the accumulator fragment of a 64-row tile. A thread owns two rows (its quad of lanes
// shares them); state r is of row l / 4 + 8 r. Sums stay partial, one a lane, until `finish`.
#ifndef TILEWISE_CUDA_TILE_SOFTMAX_H_
#define TILEWISE_CUDA_TILE_SOFTMAX_H_

#include "cuda/ptx/math.cuh"

namespace tilewise::tile {

constexpr float kMinusInfinity = -__builtin_huge_valf();

// What O must be multiplied by after a tile raised the maxima of this thread's rows.
struct Decay {
  float factor[2];
  bool needed;  // the same in the whole warp

  template <int kCount>
  __device__ __forceinline__ void apply(float (&r_o)[kCount]) const {
    if (!needed) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) r_o[i] *= factor[i / 2 % 2];
  }
};

// The maxima of the thread's two rows in a tile, the same in the four lanes of a row.
template <int kCount>
__device__ __forceinline__ void row_peaks(float (&peak)[2], const float (&r_s)[kCount]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float even = r_s[2 * r], odd = r_s[2 * r + 1];
#pragma unroll
    for (int j = 1; j < kCount / 4; ++j) {
      even = fmaxf(even, r_s[4 * j + 2 * r]);
      odd = fmaxf(odd, r_s[4 * j + 2 * r + 1]);
    }
    peak[r] = fmaxf(even, odd);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) peak[r] = fmaxf(peak[r], __shfl_xor_sync(~0u, peak[r], 1));
#pragma unroll
  for (int r = 0; r < 2; ++r) peak[r] = fmaxf(peak[r], __shfl_xor_sync(~0u, peak[r], 2));
}

// The same of a partial sum of one row.
__device__ __forceinline__ float row_sum(float partial) {
  partial += __shfl_xor_sync(~0u, partial, 1);
  partial += __shfl_xor_sync(~0u, partial, 2);
  return partial;
}

struct OnlineSoftmax {
  float top[2] = {kMinusInfinity, kMinusInfinity};  // raw units
  float sum[2] = {0.0f, 0.0f};

  // What weights are taken from, in exponents of 2; 0 where nothing was seen yet. Rounded by itself: a row
  // whose maximum did not rise is scaled by exactly 1, whatever its neighbours in the warp do. Made again
  // each time, which costs fewer registers.
  __device__ __forceinline__ float shift(int r, float scale_log2) const {
    return top[r] == kMinusInfinity ? 0.0f : __fmul_rn(top[r], scale_log2);
  }

  // Takes in the maxima of a tile of scores.
  template <int kCount>
  __device__ __forceinline__ Decay raise(const float (&r_s)[kCount], float scale_log2) {
    float peak[2];
    row_peaks(peak, r_s);
    const bool rises[2] = {peak[0] > top[0], peak[1] > top[1]};
    Decay decay = {{1.0f, 1.0f}, __any_sync(~0u, rises[0] || rises[1]) != 0};
    if (!decay.needed) return decay;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = __fmul_rn(top[r], scale_log2);
      if (rises[r]) top[r] = peak[r];
      const float now = top[r] == kMinusInfinity ? 0.0f : __fmul_rn(top[r], scale_log2);
      decay.factor[r] = ptx::exp2_approx(__fsub_rn(before, now));
      sum[r] *= decay.factor[r];
    }
    return decay;
  }

  // Scores become weights.
  template <int kCount>
  __device__ __forceinline__ void weigh(float (&r_s)[kCount], float scale_log2) {
    const float from[2] = {shift(0, scale_log2), shift(1, scale_log2)};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      r_s[i] = ptx::exp2_approx(__fmaf_rn(r_s[i], scale_log2, -from[i / 2 % 2]));
      sum[i / 2 % 2] += r_s[i];
    }
  }

  // Adds the partial sums of the four lanes of a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = row_sum(sum[r]);
  }
};

// Weights, rounded, as the A operand of the next product.
template <typename T, int kCount>
__device__ __forceinline__ void round_weights(uint32_t (&r_p)[kCount / 2], const float (&r_s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) r_p[i] = ptx::pack<T>(r_s[2 * i], r_s[2 * i + 1]);
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_SOFTMAX_H_
