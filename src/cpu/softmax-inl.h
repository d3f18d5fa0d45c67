// The online softmax on tiles with queries in the lanes: every step is vertical, one value per lane.
// `top` is a lane's running maximum, in the scores' own units, -inf until it has seen a key.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// What stands for the maximum in exponents: 0 for a lane that has seen nothing, else (-inf) - (-inf) is NaN.
HWY_INLINE V Finite(V top) {
  const D d;
  return hn::IfThenZeroElse(hn::Eq(top, hn::Set(d, kNegativeInfinity)), top);
}

// How scores become weights. Plain scores are raw products q.k: the weight is 2^(s c - top c) with c = scale
// log2 e, one multiply-add whose addend is the rounded `top c` that lse uses too, so its rounding cancels.
// Natural scores went through FinishScores and may be near the end of fp32: there the difference comes first.
template <bool kNatural>
class Weights {
 public:
  explicit HWY_INLINE Weights(float c) : c_(hn::Set(D(), c)) {}
  // What `of` takes for a maximum: -top c, or -top; 0 for a lane that has seen nothing.
  HWY_INLINE V shift(V top) const {
    if constexpr (kNatural) return hn::Neg(Finite(top));
    return hn::Neg(hn::Mul(Finite(top), c_));
  }
  HWY_INLINE V of(V score, V shift) const {
    if constexpr (kNatural) return Exp2(hn::Mul(hn::Add(score, shift), hn::Set(D(), kLog2E)));
    return Exp2(hn::MulAdd(score, c_, shift));
  }
  // The same by the difference alone: exactly 1 where the score is the maximum.
  HWY_INLINE V under(V score, V top) const {
    return Exp2(hn::Mul(hn::Sub(score, Finite(top)), kNatural ? hn::Set(D(), kLog2E) : c_));
  }
  // By what `before` is scaled where the maximum rises to `after`.
  HWY_INLINE V fall(V before, V after) const {
    if constexpr (kNatural) return Exp2(hn::Mul(hn::Sub(before, Finite(after)), hn::Set(D(), kLog2E)));
    const V factor = Exp2(hn::Sub(shift(after), shift(before)));
    // A lane that had seen nothing holds zeros, which an overflowing factor would make NaN.
    return hn::IfThenZeroElse(hn::Eq(before, hn::Set(D(), kNegativeInfinity)), factor);
  }
  // log2 of how much higher b is than a.
  HWY_INLINE V rise(V a, V b) const {
    const V unit = kNatural ? hn::Set(D(), kLog2E) : c_;
    return hn::Mul(hn::Sub(b, a), unit);
  }

 private:
  V c_;
};

template <int kVectors, bool kNatural, bool kRounded>
HWY_NOINLINE void ExponentialColumns(float c, float* HWY_RESTRICT s, int64_t ld, int n,
                                     const float* HWY_RESTRICT top, float* HWY_RESTRICT sum) {
  const D d;
  const Weights<kNatural> weights(c);
  V before[kVectors], total[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const V maximum = hn::Load(d, top + v * kLanes);
    before[v] = kRounded ? maximum : weights.shift(maximum);
    total[v] = hn::Zero(d);
  }
#pragma GCC unroll 2
  for (int j = 0; j < n; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V score = hn::Load(d, s + v * kLanes);
      const V p = kRounded ? weights.under(score, before[v]) : weights.of(score, before[v]);
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

// P^T = exp(S^T - top) in place; adds its columns to `sum`. kRounded: weights will lose their last bits, so
// that of the maximum is exactly 1, also in the sum.
template <bool kNatural, bool kRounded = false>
HWY_INLINE void Exponentials(float c, float* s, int64_t ld, int n, int width, const float* top, float* sum) {
  int x = 0;
  for (; x + 4 * kLanes <= width; x += 4 * kLanes)
    ExponentialColumns<4, kNatural, kRounded>(c, s + x, ld, n, top + x, sum + x);
  for (; x < width; x += kLanes) ExponentialColumns<1, kNatural, kRounded>(c, s + x, ld, n, top + x, sum + x);
}

// The same for the exact product: -0 where the pair is hidden (S = -inf), +0 where a weight underflowed.
template <bool kNatural, bool kRounded = false>
HWY_NOINLINE void ExponentialsMarked(float c, float* HWY_RESTRICT s, int64_t ld, int n, int width,
                                     const float* HWY_RESTRICT top, float* HWY_RESTRICT sum) {
  const D d;
  const Weights<kNatural> weights(c);
  for (int x = 0; x < width; x += kLanes) {
    const V maximum = hn::Load(d, top + x), shift = weights.shift(maximum);
    V total = hn::Zero(d);
    for (int j = 0; j < n; ++j) {
      float* at = s + j * ld + x;
      const V score = hn::Load(d, at);
      const V p = kRounded ? weights.under(score, maximum) : weights.of(score, shift);
      total = hn::Add(total, p);
      hn::Store(hn::IfThenElse(hn::Eq(score, hn::Set(d, kNegativeInfinity)), hn::Set(d, -0.0f), p), d, at);
    }
    hn::Store(hn::Add(hn::Load(d, sum + x), total), d, sum + x);
  }
}

inline HWY_NOINLINE void ColumnMaxima(const float* HWY_RESTRICT s, int64_t ld, int n, int width,
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
//
// kRounded: weights lose their last bits before they are multiplied, all but powers of two. So that a row
// that one key decides keeps its value, it also rises where that key's weight would be a large part of the
// sum.
template <bool kNatural, bool kRounded>
HWY_NOINLINE void RaiseTop(float c, const float* HWY_RESTRICT tile_top, float* HWY_RESTRICT top,
                           float* HWY_RESTRICT sum, float* HWY_RESTRICT o, int64_t ld, int dim, int width) {
  constexpr float kSlack = 8.0f, kLargePart = 1.0f / 16;
  const Weights<kNatural> weights(c);
  const D d;
  for (int x = 0; x < width; x += kLanes) {
    const V before = hn::Load(d, top + x), tile = hn::Load(d, tile_top + x);
    const V rise = weights.rise(before, tile);
    auto rises = hn::Gt(rise, hn::Set(d, kSlack));
    if constexpr (kRounded) {
      const auto large = hn::Gt(Exp2(hn::Min(rise, hn::Set(d, kSlack))),
                                hn::Mul(hn::Load(d, sum + x), hn::Set(d, kLargePart)));
      rises = hn::Or(rises, hn::And(large, hn::Gt(rise, hn::Zero(d))));
    }
    if (hn::AllFalse(d, rises)) continue;
    const V after = hn::IfThenElse(rises, tile, before);
    hn::Store(after, d, top + x);
    if (hn::AllTrue(d, hn::Eq(before, hn::Set(d, kNegativeInfinity)))) continue;  // sum and O are still 0
    const V factor = hn::IfThenElse(rises, weights.fall(before, after), hn::Set(d, 1.0f));
    hn::Store(hn::Mul(hn::Load(d, sum + x), factor), d, sum + x);
    for (int row = 0; row < dim; ++row) {
      float* at = o + row * ld + x;
      hn::Store(hn::Mul(hn::Load(d, at), factor), d, at);
    }
  }
}

HWY_INLINE void Multiply(float* HWY_RESTRICT x, const float* HWY_RESTRICT by, int64_t n) {
  const D d;
  for (int64_t i = 0; i < n; i += kLanes)
    hn::Store(hn::Mul(hn::Load(d, x + i), hn::Load(d, by + i)), d, x + i);
}

// O^T += V^T P^T element by element over what each lane sees: the bits of the tile product, without its 0 *
// NaN.
inline HWY_NOINLINE void SeenProduct(int dim, int n, const float* HWY_RESTRICT v, int64_t v_stride,
                                     const float* HWY_RESTRICT p, int64_t ld, float* HWY_RESTRICT o,
                                     int width) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto hidden = hn::BitCast(di, hn::Set(d, -0.0f));
  for (int x = 0; x < width; x += kLanes) {
    for (int c = 0; c < dim; ++c) {
      V acc = hn::Zero(d);
      for (int j = 0; j < n; ++j) {
        const V weight = hn::Load(d, p + j * ld + x);
        const auto skip = hn::RebindMask(d, hn::Eq(hn::BitCast(di, weight), hidden));
        const float value = v[j * v_stride + c];
        // A weight that underflowed was no zero: its product with an infinity is one.
        const V factor = std::isinf(value)
                             ? hn::IfThenElse(hn::Eq(weight, hn::Zero(d)), hn::Set(d, 1.0f), weight)
                             : weight;
        acc = hn::IfThenElse(skip, acc, hn::MulAdd(hn::Set(d, value), factor, acc));
      }
      float* at = o + c * ld + x;
      hn::Store(hn::Add(acc, hn::Load(d, at)), d, at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
