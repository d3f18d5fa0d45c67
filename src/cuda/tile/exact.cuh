// One row at a time, key by key: what a warp does where a tile's result is not finite. A value that is not
// finite must reach the rows that see it and no other, and in a matrix product 0 * NaN reaches them all.
#ifndef TILEWISE_CUDA_TILE_EXACT_H_
#define TILEWISE_CUDA_TILE_EXACT_H_

#include "core/params.h"
#include "core/softmax.h"
#include "cuda/tile/pairs.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::tile {

template <typename T>
__device__ __forceinline__ const T* row_of_tensor(const RowTensor& t, int batch, int64_t row, int head) {
  return static_cast<const T*>(t.data) + t.at(batch, row, head);
}

// The score of one query and one key, without what is added to it; `k_scale` of a quantised key.
template <typename T, typename K>
__device__ __forceinline__ float exact_score(const ForwardParams& p, const T* g_q, const K* g_k,
                                             float k_scale = 1.0f) {
  float s = 0.0f;
#pragma unroll 1
  for (int i = 0; i < p.head_dim; ++i) s += static_cast<float>(g_q[i]) * static_cast<float>(g_k[i]);
  s *= p.scale * k_scale;
  if (p.softcap > 0.0f) s = p.softcap * tanh_branchless(__fdividef(s, p.softcap));
  return s;
}

// Row `row` of the sequence, by a whole warp, over the keys [first, last) that `pairs` lets it see. Writes o
// and lse. Natural units: a bias may be so large that its exponent of 2 is not finite.
template <typename T, int kDimV, typename Pairs>
__device__ __forceinline__ void exact_row(const ForwardParams& p, const Work& w, int row, int kv_head,
                                          int lane, int first, int last, const Pairs& pairs) {
  constexpr int kColumns = (kDimV + 31) / 32;
  // Shuffles tell the compiler that loops end together. Where it does not know, it takes whatever follows in
  // the kernel for divergent and moves every descriptor of every product from vector to uniform registers.
  first = __shfl_sync(~0u, first, 0);
  last = __shfl_sync(~0u, last, 0);
  const float slope = p.alibi_slope(w.batch, w.head);
  const T* g_q = row_of_tensor<T>(p.q, w.batch, w.q_begin + row, w.head);
  const auto score = [&](int key) {
    if (!pairs.sees(key)) return kMinusInfinity;
    const float s = exact_score(p, g_q, row_of_tensor<T>(p.k, w.batch, w.kv_begin + key, kv_head));
    return s + pairs.added(key) - slope * (fabsf(static_cast<float>(row + w.q_offset - key)) + w.beyond);
  };
  float top = kMinusInfinity;
#pragma unroll 1
  for (int base = first; base < last; base += 32) {
    if (base + lane < last) top = fmaxf(top, score(base + lane));
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, bit));
  const float sink = p.sinks ? p.sinks[w.head * p.sinks_stride] : kMinusInfinity;
  top = fmaxf(top, sink);
  const float shift = top == kMinusInfinity ? 0.0f : top;

  float sum = 0.0f, r_o[kColumns] = {};
#pragma unroll 1
  for (int base = first; base < last; base += 32) {
    const int key = base + lane;
    const float x = key < last ? score(key) : kMinusInfinity;
    // A score of -inf hides its pair as a mask does.
    const uint32_t seen = __ballot_sync(~0u, key < last && pairs.sees(key) && x != kMinusInfinity);
    float weight = key < last ? ptx::exp2_approx((x - shift) * kLog2E) : 0.0f;
    sum += weight;
    if (key < last) weight *= pairs.kept(key);
#pragma unroll 1
    for (int i = 0; i < 32 && base + i < last; ++i) {
      if (!(seen >> i & 1)) continue;
      const float of_key = __shfl_sync(~0u, weight, i);
      const T* g_v = row_of_tensor<T>(p.v, w.batch, w.kv_begin + base + i, kv_head);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (lane + 32 * c >= p.head_dim_v) continue;
        const float value = static_cast<float>(g_v[lane + 32 * c]);
        r_o[c] += seen_weight(of_key, value) * value;
      }
    }
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
  if (p.sinks) sum += ptx::exp2_approx((sink - shift) * kLog2E);
  const bool sees = first < last && sum != 0.0f;
  const int64_t at = p.o.at(w.batch, w.q_begin + row, w.head);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = lane + 32 * c;
    const float o = sees ? __fdividef(r_o[c], sum) : 0.0f;
    if (column >= p.head_dim_v) continue;
    if (p.o.dtype == DType::f32)
      static_cast<float*>(p.o.data)[at + column] = o;
    else
      static_cast<T*>(p.o.data)[at + column] = static_cast<T>(o);
  }
  if (p.lse.data && lane == 0)
    p.lse.at(w.batch, w.q_begin + row, w.head) =
        sees ? shift + ptx::log2_approx(sum) * kLn2 : w.empty_lse(p, row);
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_EXACT_H_
