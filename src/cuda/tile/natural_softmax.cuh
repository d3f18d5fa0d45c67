// The online softmax on scores in natural units, where a bias may be so large (-3e38 in masks of some models)
// that its product with log2 e is not finite: the maximum is subtracted first. One instruction a score more
// than tile/softmax.cuh.
#ifndef TILEWISE_CUDA_TILE_NATURAL_SOFTMAX_H_
#define TILEWISE_CUDA_TILE_NATURAL_SOFTMAX_H_

#include "core/softmax.h"
#include "cuda/tile/softmax.cuh"

namespace tilewise::tile {

struct NaturalSoftmax {
  float top[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0.0f, 0.0f};

  __device__ __forceinline__ float shift(int r) const { return top[r] == kMinusInfinity ? 0.0f : top[r]; }

  template <int kCount>
  __device__ __forceinline__ Decay raise(const float (&r_s)[kCount]) {
    float peak[2];
    row_peaks(peak, r_s);
    const bool raised = peak[0] > top[0] || peak[1] > top[1];
    Decay decay = {{1.0f, 1.0f}, __any_sync(~0u, raised) != 0};
    if (!decay.needed) return decay;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = top[r];
      top[r] = fmaxf(top[r], peak[r]);
      // Equal maxima, infinite ones too, are no change.
      decay.factor[r] = before == top[r] ? 1.0f : ptx::exp2_approx((before - shift(r)) * kLog2E);
      sum[r] *= decay.factor[r];
    }
    return decay;
  }

  template <int kCount>
  __device__ __forceinline__ void weigh(float (&r_s)[kCount]) {
    const float from[2] = {shift(0), shift(1)};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      r_s[i] = ptx::exp2_approx((r_s[i] - from[i / 2 % 2]) * kLog2E);
      sum[i / 2 % 2] += r_s[i];
    }
  }

  // Adds the partial sums of the four lanes of a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = row_sum(sum[r]);
  }
};

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_NATURAL_SOFTMAX_H_
