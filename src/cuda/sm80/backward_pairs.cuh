// What the score class general does with a fragment of raw products, in either kernel of the backward: which
// pairs are seen, P with the softcap's derivative in it, what V is weighted by, and dS.
//
// Each thread keeps one bit a pair: seen, and kept by dropout. Nothing outside a tensor is read: where a tile
// is not full, pairs are asked one by one. Scores are in natural units, where a bias may be so large that its
// exponent of 2 is not finite.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_PAIRS_H_
#define TILEWISE_CUDA_SM80_BACKWARD_PAIRS_H_

#include "cuda/ptx/math.cuh"
#include "cuda/sm80/backward_config.cuh"
#include "cuda/tile/pairs.cuh"
#include "cuda/tile/score.cuh"

namespace tilewise::sm80 {

// A row whose lse is -inf sees nothing: it is taken as one whose weights are all 0.
__device__ __forceinline__ float lse_or_far(float lse) { return lse == kNegativeInfinity ? -lse : lse; }

// Where the elements of a thread lie. Rows of the fragment are queries; the other way round, keys.
struct ByQueries {
  int query, key;  // of element 0
  static constexpr int query_step(int i) { return 8 * (i / 2 % 2); }
  static constexpr int key_step(int i) { return tile::fragment_column(i); }
};
struct ByKeys {
  int query, key;
  static constexpr int query_step(int i) { return tile::fragment_column(i); }
  static constexpr int key_step(int i) { return 8 * (i / 2 % 2); }
};

// What dS is taken for: with the softcap's derivative, or of the score that the bias is added to.
enum class GradientOf { product, bias };

// Rows: of an element i, what its query has: lo(i), hi(i), lse(i), delta(i), dropout(i).
template <typename Place, typename Rows, int kCount>
struct GeneralFragment {
  static_assert(kCount <= 32);
  const BackwardArgs& args;
  const tile::SequenceBand& w;
  const Rows& rows;
  const int head;  // of queries
  const Place at;
  uint32_t seen = ~0u, kept = ~0u;
  float bias[kCount];  // of seen pairs; then the softcap's derivative

  // What memory says of the pairs: asked before the products that it is needed after. Full: the interval of
  // every query holds every key of the tile. Mixed: segments tell its pairs apart.
  __device__ __forceinline__ void fetch(bool full, bool mixed) {
    const BackwardParams& p = args.params;
    if (!full || mixed)
      ask();
    else if (p.mask.data)
      read_mask();
    if (p.bias.data) read_bias();
  }

  // Raw products to P.
  __device__ __forceinline__ void weigh(float (&x)[kCount]) {
    if (args.shaped) {
      shape(x);
      hide(x);
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = ptx::exp2_approx((x[i] - rows.lse(i)) * kLog2E);
    } else {
      hide(x);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        x[i] = ptx::exp2_approx(fmaf(x[i], args.scale_log2, -rows.lse(i) * kLog2E));
    }
    if (args.params.dropout_threshold) choose();
  }

  // What values are weighted by, from P.
  template <typename T>
  __device__ __forceinline__ void round_weights(uint32_t (&words)[kCount / 2],
                                                const float (&x)[kCount]) const {
    if (args.params.dropout_threshold) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2)
        words[i / 2] = ptx::pack<T>(kept >> i & 1 ? x[i] * args.dropout_scale : 0.0f,
                                    kept >> i & 2 ? x[i + 1] * args.dropout_scale : 0.0f);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) words[i / 2] = ptx::pack<T>(x[i], x[i + 1]);
    }
  }

  // The same, not rounded.
  __device__ __forceinline__ void drop(float (&to)[kCount], const float (&x)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      to[i] = !args.params.dropout_threshold ? x[i] : kept >> i & 1 ? x[i] * args.dropout_scale : 0.0f;
  }

  // P to dS. Careful: where a hidden pair's dP is not finite, 0 times it is not 0.
  template <GradientOf kOf>
  __device__ __forceinline__ void score_gradients(float (&x)[kCount], float (&dp)[kCount],
                                                  bool careful) const {
    if (args.params.dropout_threshold) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) dp[i] = kept >> i & 1 ? dp[i] * args.dropout_scale : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] *= dp[i] - rows.delta(i);
    if (kOf == GradientOf::product && args.params.softcap > 0.0f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] *= bias[i];
    }
    if (!careful) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!(seen >> i & 1)) x[i] = 0.0f;
    }
  }

 private:
  // To natural scores; bias to the softcap's derivative.
  __device__ __forceinline__ void shape(float (&x)[kCount]) {
    const BackwardParams& p = args.params;
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] *= p.scale;
    if (p.softcap > 0.0f) {
      const float inverse = 1.0f / p.softcap;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float t = tile::tanh_branchless(x[i] * inverse), added = p.bias.data ? bias[i] : 0.0f;
        x[i] = fmaf(p.softcap, t, added);
        if (added == kNegativeInfinity) seen &= ~(1u << i);  // hides as a mask does
        bias[i] = fmaf(-t, t, 1.0f);
      }
    } else if (p.bias.data) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        x[i] += bias[i];
        if (bias[i] == kNegativeInfinity) seen &= ~(1u << i);
      }
    }
    if (const float slope = p.alibi_slope(w.batch, head); slope != 0.0f) {
      const int distance = at.query + w.q_offset - at.key;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        x[i] -= slope *
                (fabsf(static_cast<float>(distance + Place::query_step(i) - Place::key_step(i))) + w.beyond);
    }
  }

  __device__ __forceinline__ void hide(float (&x)[kCount]) const {
    if (seen == ~0u) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!(seen >> i & 1)) x[i] = kNegativeInfinity;
    }
  }

  __device__ __forceinline__ void choose() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!dropout_keep(rows.dropout(i), at.key + Place::key_step(i), args.params.dropout_threshold))
        kept &= ~(1u << i);
    }
  }

  __device__ __forceinline__ void ask() {
    const BackwardParams& p = args.params;
    seen = 0;
#pragma unroll 4
    for (int i = 0; i < kCount; ++i) {
      const int key = at.key + Place::key_step(i), query = at.query + Place::query_step(i);
      if (key < rows.lo(i) || key >= rows.hi(i)) continue;
      if (pair_allowed(p, w.batch, head, w.q_begin, w.kv_begin, query, key)) seen |= 1u << i;
    }
  }

  __device__ __forceinline__ void read_mask() {
    seen = 0;
    const ScoreTensor& mask = args.params.mask;
    const int64_t first = place_in(mask);
    const auto* g_bytes = static_cast<const uint8_t*>(mask.data);
    if (mask.dtype == DType::bit) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int64_t bit = first + step_in(mask, i);
        if (g_bytes[bit >> 3] >> (bit & 7) & 1) seen |= 1u << i;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (g_bytes[first + step_in(mask, i)]) seen |= 1u << i;
      }
    }
  }

  __device__ __forceinline__ void read_bias() {
    const ScoreTensor& added = args.params.bias;
    const int64_t first = place_in(added);
    if (added.dtype == DType::f32) {
      const float* g_bias = static_cast<const float*>(added.data) + first;
#pragma unroll
      for (int i = 0; i < kCount; ++i) bias[i] = seen >> i & 1 ? g_bias[step_in(added, i)] : 0.0f;
    } else {
      const auto* g_bias = static_cast<const uint16_t*>(added.data) + first;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        bias[i] = __uint_as_float(seen >> i & 1 ? g_bias[step_in(added, i)] : 0u);
      const bool half = added.dtype == DType::f16;
#pragma unroll
      for (int i = 0; i < kCount; ++i) bias[i] = ptx::unpack(__float_as_uint(bias[i]), half).x;
    }
  }

  __device__ __forceinline__ int64_t place_in(const ScoreTensor& t) const {
    return w.batch * t.batch_stride + head * t.head_stride + at.query * t.row_stride + at.key * t.key_stride;
  }
  static __device__ __forceinline__ int64_t step_in(const ScoreTensor& t, int i) {
    return Place::query_step(i) * t.row_stride + Place::key_step(i) * t.key_stride;
  }
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_BACKWARD_PAIRS_H_
