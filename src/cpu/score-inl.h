// From raw products to masked scores: what forward and backward do to an S^T tile s[key][lane] before the
// exponential. Natural units; -inf where the pair is hidden. Not log2 units: a finite bias near the end of
// fp32 must stay finite. Included once per instruction set, inside HWY_BEFORE_NAMESPACE, after exp-inl.h.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Lanes whose interval [lo, hi) does not hold the key.
HWY_INLINE hn::Mask<hn::ScalableTag<float>> OutsideInterval(hn::Vec<hn::ScalableTag<int32_t>> lo,
                                                            hn::Vec<hn::ScalableTag<int32_t>> hi,
                                                            int64_t key) {
  const hn::ScalableTag<int32_t> di;
  const auto at = hn::Set(di, static_cast<int32_t>(key));
  return hn::RebindMask(hn::ScalableTag<float>(), hn::Or(hn::Gt(lo, at), hn::Not(hn::Gt(hi, at))));
}

// The interval test alone, in any units. Keys j0 .. j0 + n.
inline HWY_NOINLINE void MaskIntervals(float* HWY_RESTRICT s, int64_t ld, const Lanes& lanes, int64_t j0,
                                       int n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto hidden = hn::Set(d, kNegativeInfinity);
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < ld; r += step) {
    const auto lo = hn::Load(di, lanes.lo + r);
    const auto hi = hn::Load(di, lanes.hi + r);
    for (int j = 0; j < n; ++j) {
      float* at = s + j * ld + r;
      hn::Store(hn::IfThenElse(OutsideInterval(lo, hi, j0 + j), hidden, hn::Load(d, at)), d, at);
    }
  }
}

// Softcap, bias, ALiBi, segments, dense mask, interval. s times `scale` is the score. `add` is
// load_bias_and_mask's tile or null; `key_segments` the ids of the keys or null; `slope` (or null) gets the
// softcap's derivative 1 - tanh^2, for backward.
inline HWY_NOINLINE void FinishScores(float* HWY_RESTRICT s, int64_t ld, const Lanes& lanes,
                                      const ForwardParams& p, float scale, int64_t j0, int n,
                                      const float* HWY_RESTRICT add, const int32_t* HWY_RESTRICT key_segments,
                                      float* HWY_RESTRICT slope) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto hidden = hn::Set(d, kNegativeInfinity);
  const auto factor = hn::Set(d, scale);
  const bool capped = p.softcap > 0.0f;
  const auto cap = hn::Set(d, p.softcap), inverse_cap = hn::Set(d, capped ? 1.0f / p.softcap : 0.0f);
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < ld; r += step) {
    const auto lo = hn::Load(di, lanes.lo + r);
    const auto hi = hn::Load(di, lanes.hi + r);
    const auto position = hn::Load(di, lanes.position + r);
    const auto segment = hn::Load(di, lanes.segment + r);
    const auto alibi = hn::Load(d, lanes.slope + r), beyond = hn::Load(d, lanes.beyond + r);
    for (int j = 0; j < n; ++j) {
      float* at = s + j * ld + r;
      auto x = hn::Mul(factor, hn::Load(d, at));
      if (capped) {
        const auto t = hn::Tanh(d, hn::Mul(x, inverse_cap));
        x = hn::Mul(cap, t);
        if (slope) hn::Store(hn::NegMulAdd(t, t, hn::Set(d, 1.0f)), d, slope + j * ld + r);
      }
      auto out = OutsideInterval(lo, hi, j0 + j);
      if (add) {
        const auto a = hn::Load(d, add + j * ld + r);
        out = hn::Or(out, hn::Eq(a, hidden));
        x = hn::Add(x, a);
      }
      if (p.alibi_slopes) {
        const auto key = hn::Set(di, static_cast<int32_t>(j0 + j));
        const auto distance = hn::ConvertTo(d, hn::Abs(hn::Sub(position, key)));
        x = hn::NegMulAdd(alibi, hn::Add(distance, beyond), x);
      }
      if (key_segments) {
        const auto other = hn::Not(hn::Eq(segment, hn::Set(di, key_segments[j])));
        out = hn::Or(out, hn::RebindMask(d, other));
      }
      hn::Store(hn::IfThenElse(out, hidden, x), d, at);
    }
  }
}

// keep[key][lane] of keys j0 .. j0 + n: 0 or 1/(1-p), by core/dropout.h; one hash serves the keys 2m and 2m
// + 1.
inline HWY_NOINLINE void LoadDropout(float* HWY_RESTRICT keep, int64_t ld, const ForwardParams& p,
                                     const Lanes& lanes, int64_t j0, int n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto scale = hn::Set(d, dropout_scale_of(p.dropout_threshold));
  const auto threshold = hn::Set(di, static_cast<int32_t>(p.dropout_threshold));
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < ld; r += step) {
    const auto a = hn::Load(du, lanes.dropout_a + r), b = hn::Load(du, lanes.dropout_b + r);
    for (int64_t j = j0 & ~int64_t{1}; j < j0 + n; j += 2) {
      auto x = hn::Add(a, hn::Set(du, static_cast<uint32_t>(j >> 1) * kDropoutKeyFactor));
      x = hn::Xor(x, hn::ShiftRight<16>(x));
      x = hn::Mul(x, hn::Set(du, kDropoutFactor1));
      x = hn::Xor(x, hn::Xor(hn::ShiftRight<15>(x), b));
      x = hn::Mul(x, hn::Set(du, kDropoutFactor2));
      x = hn::Xor(x, hn::ShiftRight<15>(x));
      const auto even = hn::And(x, hn::Set(du, 0xffffu)), odd = hn::ShiftRight<16>(x);
      if (j >= j0) {
        const auto dropped = hn::RebindMask(d, hn::Gt(threshold, hn::BitCast(di, even)));
        hn::Store(hn::IfThenZeroElse(dropped, scale), d, keep + (j - j0) * ld + r);
      }
      if (j + 1 < j0 + n) {
        const auto dropped = hn::RebindMask(d, hn::Gt(threshold, hn::BitCast(di, odd)));
        hn::Store(hn::IfThenZeroElse(dropped, scale), d, keep + (j + 1 - j0) * ld + r);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
