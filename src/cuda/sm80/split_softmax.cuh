// What a step's scores become, in the warps of split_product.cuh and in the wide blocks of
// sm90/split_wide_product.cuh: capped, sloped and hidden, then weights by the online softmax. A thread has
// two rows, `row` and + 8; all is in exponents of 2.
#ifndef TILEWISE_CUDA_SM80_SPLIT_SOFTMAX_H_
#define TILEWISE_CUDA_SM80_SPLIT_SOFTMAX_H_

#include "core/softmax.h"
#include "cuda/sm80/split_args.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::sm80 {

// Products to scores, without what is added to them.
template <int kCount>
__device__ __forceinline__ void scale_products(const SplitArgs& args, float (&r_s)[kCount]) {
  if (args.softcap_log2 > 0.0f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      r_s[i] = args.softcap_log2 * tile::tanh_branchless(r_s[i] * args.params.scale * args.inverse_cap);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) r_s[i] *= args.scale_log2;
  }
}

// ALiBi. `key` is of the first column; beyond: tile/work.cuh.
template <typename Shared, int kCount>
__device__ __forceinline__ void slope_scores(const Shared& shared, float (&r_s)[kCount], int row, int key,
                                             float beyond) {
  const int position[2] = {shared.position[row], shared.position[row + 8]};
  const float slope[2] = {shared.slope[row], shared.slope[row + 8]};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int distance = position[i / 2 % 2] - key - tile::fragment_column(i);
    r_s[i] -= slope[i / 2 % 2] * (fabsf(static_cast<float>(distance)) + beyond);
  }
}

template <typename Shared, int kCount>
__device__ __forceinline__ void hide_scores(const Shared& shared, float (&r_s)[kCount], int row, int key) {
  const int lo[2] = {shared.lo[row], shared.lo[row + 8]}, hi[2] = {shared.hi[row], shared.hi[row + 8]};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = key + tile::fragment_column(i);
    if (column < lo[i / 2 % 2] || column >= hi[i / 2 % 2]) r_s[i] = kNegativeInfinity;
  }
}

// Takes in the maxima; what was summed up before falls where they rise.
template <int kCount, int kOfO>
__device__ __forceinline__ void raise_rows(float (&top)[2], float (&sum)[2], const float (&r_s)[kCount],
                                           float (&r_o)[kOfO]) {
  float peak[2];
  tile::row_peaks(peak, r_s);
  if (!__any_sync(~0u, peak[0] > top[0] || peak[1] > top[1])) return;
  float fall[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float risen = fmaxf(top[r], peak[r]);
    fall[r] = risen == top[r] ? 1.0f : ptx::exp2_approx(top[r] - risen);
    top[r] = risen;
    sum[r] *= fall[r];
  }
#pragma unroll
  for (int i = 0; i < kOfO; ++i) r_o[i] *= fall[i / 2 % 2];
}

// Scores to weights.
template <int kCount>
__device__ __forceinline__ void weigh_rows(const float (&top)[2], float (&sum)[2], float (&r_s)[kCount]) {
  const float from[2] = {top[0] == kNegativeInfinity ? 0.0f : top[0],
                         top[1] == kNegativeInfinity ? 0.0f : top[1]};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    r_s[i] = ptx::exp2_approx(r_s[i] - from[i / 2 % 2]);
    sum[i / 2 % 2] += r_s[i];
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_SOFTMAX_H_
