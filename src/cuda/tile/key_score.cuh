// Scores of a transposed fragment (rows are keys, columns are queries) become weights: backward's twin of
// score.cuh. lse is known, so there is no maximum.
#ifndef TILEWISE_CUDA_TILE_KEY_SCORE_H_
#define TILEWISE_CUDA_TILE_KEY_SCORE_H_

#include "cuda/ptx/registers.cuh"
#include "cuda/tile/key_work.cuh"
#include "cuda/tile/score.cuh"

namespace tilewise::tile {

// shift_of(j): -lse in exponents of 2 of this lane's two queries of the j-th eight.
template <int kCount, typename ShiftOf>
__device__ __forceinline__ void weigh_keys(float (&r_s)[kCount], float scale_log2, const ShiftOf& shift_of) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 shift = shift_of(j);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r_s[4 * j + i] = ptx::exp2_approx(__fmaf_rn(r_s[4 * j + i], scale_log2, i % 2 ? shift.y : shift.x));
  }
}

// What softcap and ALiBi do to the scores of one piece of work.
struct KeyScore {
  float scale, softcap, slope;
  int position;  // of the fragment's first query, less its first key
  float beyond;
};

// With softcap and ALiBi. Leaves the rounded weights in r_p; take(j, w) gets the weights times the softcap's
// derivative, four by four.
template <typename T, int kCount, typename Take>
__device__ __forceinline__ void weigh_shaped_keys(const float (&r_s)[kCount], uint32_t (&r_p)[kCount / 2],
                                                  const float* s_shift, const KeyScore& how,
                                                  const int (&first)[2], const int (&last)[2],
                                                  const Take& take) {
  const float inverse = how.softcap > 0.0f ? 1.0f / how.softcap : 0.0f;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 shift = *reinterpret_cast<const float2*>(s_shift + 8 * j);
    float p[4], w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2, column = 8 * j + i % 2;
      float x = r_s[4 * j + i] * how.scale, slope = 1.0f;
      if (how.softcap > 0.0f) {
        const float t = tanh_branchless(x * inverse);
        x = how.softcap * t;
        slope = __fmaf_rn(-t, t, 1.0f);
      }
      x -= how.slope * (fabsf(static_cast<float>(how.position + column - 8 * row)) + how.beyond);
      p[i] = ptx::exp2_approx(__fmaf_rn(x, kLog2E, i % 2 ? shift.y : shift.x));
      if (column >= last[row] || column < first[row]) p[i] = 0.0f;
      w[i] = p[i] * slope;
    }
    r_p[2 * j] = ptx::pack<T>(p[0], p[1]);
    r_p[2 * j + 1] = ptx::pack<T>(p[2], p[3]);
    ptx::in_order();
    take(j, make_float4(w[0], w[1], w[2], w[3]));
  }
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_KEY_SCORE_H_
