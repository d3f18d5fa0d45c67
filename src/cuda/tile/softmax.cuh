// Online softmax on the accumulator fragment of a 64-row tile. A thread owns two rows (its quad of lanes shares
// them); state r is of row l / 4 + 8 r. Sums stay partial, one a lane, until `finish`.
#ifndef TILEWISE_CUDA_TILE_SOFTMAX_H_
#define TILEWISE_CUDA_TILE_SOFTMAX_H_

#include "cuda/ptx/math.cuh"

namespace tilewise::tile {

constexpr float kMinusInfinity = -__builtin_huge_valf();

// Weights up to 2^8 are as exact in bf16, fp16 and fp32 sums as weights up to 1, so the running maximum may
// lag by that much, and most tiles need no rescaling of O.
constexpr float kRescaleThreshold = 8.0f;

struct OnlineSoftmax {
  float top[2] = {kMinusInfinity, kMinusInfinity};  // the maximum that weights are taken from, raw units
  float shift[2] = {0.0f, 0.0f};                    // top * scale, 0 where top is -inf
  float sum[2] = {0.0f, 0.0f};
  float decay[2] = {1.0f, 1.0f};  // what O and the sum still have to be multiplied by

  // Takes in the maxima of a tile of scores. True where this warp must rescale O by `decay`.
  template <int kCount>
  __device__ __forceinline__ bool raise(const float (&r_s)[kCount], float scale_log2) {
    float peak[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      peak[r][0] = r_s[2 * r];
      peak[r][1] = r_s[2 * r + 1];
#pragma unroll
      for (int j = 1; j < kCount / 4; ++j) {
        peak[r][0] = fmaxf(peak[r][0], r_s[4 * j + 2 * r]);
        peak[r][1] = fmaxf(peak[r][1], r_s[4 * j + 2 * r + 1]);
      }
      peak[r][0] = fmaxf(peak[r][0], peak[r][1]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) peak[r][0] = fmaxf(peak[r][0], __shfl_xor_sync(~0u, peak[r][0], 1));
#pragma unroll
    for (int r = 0; r < 2; ++r) peak[r][0] = fmaxf(peak[r][0], __shfl_xor_sync(~0u, peak[r][0], 2));
    bool raised = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) raised |= (peak[r][0] - top[r]) * scale_log2 > kRescaleThreshold;
    if (!__any_sync(~0u, raised)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = top[r];
      top[r] = fmaxf(top[r], peak[r][0]);
      shift[r] = top[r] == kMinusInfinity ? 0.0f : top[r] * scale_log2;
      decay[r] = ptx::exp2_approx(before * scale_log2 - shift[r]);
      sum[r] *= decay[r];
    }
    return true;
  }

  // Scores [kFirst, kLast) of the fragment become weights.
  template <int kFirst, int kLast, int kCount>
  __device__ __forceinline__ void weigh(float (&r_s)[kCount], float scale_log2) {
#pragma unroll
    for (int i = kFirst; i < kLast; ++i) {
      r_s[i] = ptx::exp2_approx(r_s[i] * scale_log2 - shift[i / 2 % 2]);
      sum[i / 2 % 2] += r_s[i];
    }
  }

  template <int kCount>
  __device__ __forceinline__ void rescale(float (&r_o)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) r_o[i] *= decay[i / 2 % 2];
  }

  // Adds the partial sums of the four lanes of a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
  }
};

// Weights, rounded, as the A operand of the next product. kFirst and kLast count fp32 weights.
template <typename T, int kFirst, int kLast, int kCount>
__device__ __forceinline__ void round_weights(uint32_t (&r_p)[kCount / 2], const float (&r_s)[kCount]) {
#pragma unroll
  for (int i = kFirst / 2; i < kLast / 2; ++i) r_p[i] = ptx::pack<T>(r_s[2 * i], r_s[2 * i + 1]);
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_SOFTMAX_H_
