// The online softmax on tiles with queries in the lanes: every step is vertical, one value per lane.
// `top` is a lane's running maximum, -inf until it has seen a key. Scores are in units of log2, or (kNatural,
// where they went through FinishScores) natural: a difference is then taken first and scaled after.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// What stands for the maximum in exponents: 0 for a lane that has seen nothing, else (-inf) - (-inf) is NaN.
HWY_INLINE V Finite(V top) {
  const D d;
  return hn::IfThenZeroElse(hn::Eq(top, hn::Set(d, kNegativeInfinity)), top);
}

// e^difference or 2^difference.
template <bool kNatural>
HWY_INLINE V Weight(V difference) {
  if constexpr (kNatural) return Exp2(hn::Mul(difference, hn::Set(D(), kLog2E)));
  return Exp2(difference);
}

template <int kVectors, bool kNatural>
HWY_NOINLINE void ExponentialColumns(float* HWY_RESTRICT s, int64_t ld, int n, const float* HWY_RESTRICT top,
                                     float* HWY_RESTRICT sum) {
  const D d;
  V minus_top[kVectors], total[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    minus_top[v] = hn::Neg(Finite(hn::Load(d, top + v * kLanes)));
    total[v] = hn::Zero(d);
  }
#pragma GCC unroll 2
  for (int j = 0; j < n; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V p = Weight<kNatural>(hn::Add(minus_top[v], hn::Load(d, s + v * kLanes)));
      hn::Store(p, d, s + v * kLanes);
      total[v] = hn::Add(total[v], p);
    }
    s += ld;
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    float* at = sum + v * kLanes;
    hn::Store(hn::Add(hn::Load(d, at), total[v]), d, at);
  }
}

// P^T = exp(S^T - top) in place; adds its columns to `sum`.
template <bool kNatural>
HWY_INLINE void Exponentials(float* s, int64_t ld, int n, int width, const float* top, float* sum) {
  int x = 0;
  for (; x + 4 * kLanes <= width; x += 4 * kLanes)
    ExponentialColumns<4, kNatural>(s + x, ld, n, top + x, sum + x);
  for (; x < width; x += kLanes) ExponentialColumns<1, kNatural>(s + x, ld, n, top + x, sum + x);
}

// The same for the exact product: -0 where the pair is hidden (S = -inf), and 2^-100 where a weight
// underflowed: nothing beside the others, but its product with an infinity is one. (Not 2^-126: products with
// it would be denormal, and slow.)
template <bool kNatural>
HWY_NOINLINE void ExponentialsMarked(float* HWY_RESTRICT s, int64_t ld, int n, int width,
                                     const float* HWY_RESTRICT top, float* HWY_RESTRICT sum) {
  const D d;
  for (int x = 0; x < width; x += kLanes) {
    const V minus_top = hn::Neg(Finite(hn::Load(d, top + x)));
    V total = hn::Zero(d);
    for (int j = 0; j < n; ++j) {
      float* at = s + j * ld + x;
      const V score = hn::Load(d, at);
      const V p = Weight<kNatural>(hn::Add(minus_top, score));
      total = hn::Add(total, p);
      const V seen = hn::IfThenElse(hn::Eq(p, hn::Zero(d)), hn::Set(d, 0x1p-100f), p);
      hn::Store(hn::IfThenElse(hn::Eq(score, hn::Set(d, kNegativeInfinity)), hn::Set(d, -0.0f), seen), d, at);
    }
    hn::Store(hn::Add(hn::Load(d, sum + x), total), d, sum + x);
  }
}

HWY_NOINLINE void ColumnMaxima(const float* HWY_RESTRICT s, int64_t ld, int n, int width,
                               float* HWY_RESTRICT top) {
  const D d;
  for (int x = 0; x < width; x += kLanes) {
    V maximum = hn::Set(d, kNegativeInfinity);
    for (int j = 0; j < n; ++j) maximum = hn::Max(maximum, hn::Load(d, s + j * ld + x));
    hn::Store(maximum, d, top + x);
  }
}

// Raises `top` to the tile's maximum in the lanes where that is higher by more than kSlack, and scales their
// sums and columns of O^T down. A weight is at most 2^8 then, which costs fp32 nothing, and after its
// first tiles a row is hardly ever scaled again. Each lane decides for itself.
template <bool kNatural>
HWY_NOINLINE void RaiseTop(const float* HWY_RESTRICT tile_top, float* HWY_RESTRICT top,
                           float* HWY_RESTRICT sum, float* HWY_RESTRICT o, int64_t ld, int dim, int width) {
  constexpr float kSlack = kNatural ? 5.5f : 8.0f;
  const D d;
  for (int x = 0; x < width; x += kLanes) {
    const V before = hn::Load(d, top + x), tile = hn::Load(d, tile_top + x);
    const auto rises = hn::Gt(tile, hn::Add(before, hn::Set(d, kSlack)));
    if (hn::AllFalse(d, rises)) continue;
    const V after = hn::IfThenElse(rises, tile, before);
    hn::Store(after, d, top + x);
    if (hn::AllTrue(d, hn::Eq(before, hn::Set(d, kNegativeInfinity)))) continue;  // sum and O are still 0
    const V factor =
        hn::IfThenElse(rises, Weight<kNatural>(hn::Sub(before, Finite(after))), hn::Set(d, 1.0f));
    hn::Store(hn::Mul(hn::Load(d, sum + x), factor), d, sum + x);
    for (int c = 0; c < dim; ++c) {
      float* at = o + c * ld + x;
      hn::Store(hn::Mul(hn::Load(d, at), factor), d, at);
    }
  }
}

// Multiplies each lane of `rows` rows by its factor.
HWY_INLINE void ScaleLanes(float* HWY_RESTRICT x, int width, int rows, const float* HWY_RESTRICT factors) {
  const D d;
  for (int r = 0; r < rows; ++r, x += width)
    for (int i = 0; i < width; i += kLanes)
      hn::Store(hn::Mul(hn::Load(d, x + i), hn::Load(d, factors + i)), d, x + i);
}

HWY_INLINE void Multiply(float* HWY_RESTRICT x, const float* HWY_RESTRICT by, int64_t n) {
  const D d;
  for (int64_t i = 0; i < n; i += kLanes)
    hn::Store(hn::Mul(hn::Load(d, x + i), hn::Load(d, by + i)), d, x + i);
}

// O^T += V^T P^T element by element over what each lane sees: the bits of the tile product, without its 0 *
// NaN.
HWY_NOINLINE void SeenProduct(int dim, int n, const float* HWY_RESTRICT v, int64_t v_stride,
                              const float* HWY_RESTRICT p, int64_t ld, float* HWY_RESTRICT o, int width) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto hidden = hn::BitCast(di, hn::Set(d, -0.0f));
  for (int x = 0; x < width; x += kLanes) {
    for (int c = 0; c < dim; ++c) {
      V acc = hn::Zero(d);
      for (int j = 0; j < n; ++j) {
        const V weight = hn::Load(d, p + j * ld + x);
        const auto skip = hn::RebindMask(d, hn::Eq(hn::BitCast(di, weight), hidden));
        acc = hn::IfThenElse(skip, acc, hn::MulAdd(hn::Set(d, v[j * v_stride + c]), weight, acc));
      }
      float* at = o + c * ld + x;
      hn::Store(hn::Add(acc, hn::Load(d, at)), d, at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
