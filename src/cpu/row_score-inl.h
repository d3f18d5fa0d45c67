// The scores of one row of q over a tile of keys that lie in the lanes: what score-inl.h does to tiles with
// queries in the lanes. Natural units, as there.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// s[j] is the product with key key0 + j, from <= j < to; the vectors that hold them are whole. `add` is
// load_row_bias_and_mask's row or null, `key_segments` the ids of the keys or null.
inline HWY_NOINLINE void FinishRowScores(float* HWY_RESTRICT s, int from, int to, const ForwardParams& p,
                                         const RowPlace& place, int64_t key0, const float* HWY_RESTRICT add,
                                         const int32_t* HWY_RESTRICT key_segments) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V hidden = hn::Set(d, kNegativeInfinity), factor = hn::Set(d, p.scale);
  const bool capped = p.softcap > 0.0f;
  const V cap = hn::Set(d, p.softcap), inverse_cap = hn::Set(d, capped ? 1.0f / p.softcap : 0.0f);
  const auto position = hn::Set(di, place.position), segment = hn::Set(di, place.segment);
  const V slope = hn::Set(d, place.slope), beyond = hn::Set(d, place.beyond);
  for (int j = from / kLanes * kLanes; j < to; j += kLanes) {
    V x = hn::Mul(factor, hn::Load(d, s + j));
    if (capped) x = hn::Mul(cap, hn::Tanh(d, hn::Mul(x, inverse_cap)));
    auto out = hn::Lt(hidden, hidden);  // none
    if (add) {
      const V a = hn::Load(d, add + j);
      out = hn::Eq(a, hidden);
      x = hn::Add(x, a);
    }
    if (p.alibi_slopes) {
      const auto key = hn::Iota(di, static_cast<int32_t>(key0 + j));
      x = hn::NegMulAdd(slope, hn::Add(hn::ConvertTo(d, hn::Abs(hn::Sub(position, key))), beyond), x);
    }
    if (key_segments) {
      const auto other = hn::Not(hn::Eq(segment, hn::Load(di, key_segments + j)));
      out = hn::Or(out, hn::RebindMask(d, other));
    }
    hn::Store(hn::IfThenElse(out, hidden, x), d, s + j);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
