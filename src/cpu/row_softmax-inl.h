// The online softmax of one row of q whose keys lie in the lanes, and how parts of it are joined.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// o *= factor, whole vectors. A weight that underflowed was no zero: what is infinite stays so.
HWY_INLINE void ScaleRow(float* HWY_RESTRICT o, int64_t n, V factor) {
  const D d;
  const bool vanished = hn::GetLane(factor) == 0.0f;
  const V infinity = hn::Set(d, -kNegativeInfinity);
  for (int64_t c = 0; c < n; c += kLanes) {
    const V x = hn::Load(d, o + c), scaled = hn::Mul(x, factor);
    hn::Store(vanished ? hn::IfThenElse(hn::Eq(hn::Abs(x), infinity), x, scaled) : scaled, d, o + c);
  }
}

// n scores, whole vectors, become weights under the maximum of the row so far; its sum and o follow. `exact`:
// -0 where the score is -inf. `scales`, where not null, are those of v: weights are multiplied by them, but
// for the unseen, and the sum is not. kRounded: weights will lose their last bits, so that of the maximum is
// exactly 1, also in the sum.
template <bool kNatural, bool kRounded>
HWY_NOINLINE void WeighRow(float c, float* HWY_RESTRICT s, int n, RowState& state, float* HWY_RESTRICT o,
                           int64_t pitch, const float* HWY_RESTRICT scales, bool exact) {
  const D d;
  const Weights<kNatural> weights(c);
  V maximum = hn::Load(d, s);
  for (int j = kLanes; j < n; j += kLanes) maximum = hn::Max(maximum, hn::Load(d, s + j));
  const V tile_top = hn::MaxOfLanes(d, maximum);
  const float tile = hn::GetLane(tile_top);
  if (tile > state.top) {
    if (state.sum != 0.0f) {
      const V fall = weights.fall(hn::Set(d, state.top), tile_top);
      state.sum *= hn::GetLane(fall);
      ScaleRow(o, pitch, fall);
    }
    state.top = tile;
  }
  const V top = hn::Set(d, state.top), shift = weights.shift(top);
  V sum = hn::Zero(d);
  for (int j = 0; j < n; j += kLanes) {
    const V score = hn::Load(d, s + j);
    const V p = kRounded ? weights.under(score, top) : weights.of(score, shift);
    const auto unseen = hn::Eq(score, hn::Set(d, kNegativeInfinity));
    const V weight = scales ? hn::IfThenElse(unseen, p, hn::Mul(p, hn::Load(d, scales + j))) : p;
    hn::Store(exact ? hn::IfThenElse(unseen, hn::Set(d, -0.0f), weight) : weight, d, s + j);
    sum = hn::Add(sum, p);
  }
  state.sum += hn::GetLane(hn::SumOfLanes(d, sum));
}

// Folds the part (state and o) of later keys into the row.
template <bool kNatural>
HWY_NOINLINE void JoinPart(float c, RowState& all, float* HWY_RESTRICT o, const RowState& part,
                           const float* HWY_RESTRICT part_o, float* HWY_RESTRICT buffer, int64_t pitch) {
  if (part.empty()) return;
  if (all.empty()) {
    all = part;
    std::memcpy(o, part_o, static_cast<size_t>(pitch) * sizeof(float));
    return;
  }
  const D d;
  const Weights<kNatural> weights(c);
  const float top = part.top > all.top ? part.top : all.top;
  const V of_all = weights.fall(hn::Set(d, all.top), hn::Set(d, top)),
          of_part = weights.fall(hn::Set(d, part.top), hn::Set(d, top));
  ScaleRow(o, pitch, of_all);
  std::memcpy(buffer, part_o, static_cast<size_t>(pitch) * sizeof(float));
  ScaleRow(buffer, pitch, of_part);
  for (int64_t i = 0; i < pitch; i += kLanes)
    hn::Store(hn::Add(hn::Load(d, o + i), hn::Load(d, buffer + i)), d, o + i);
  const float scaled = all.sum * hn::GetLane(of_all);
  all.sum = std::fma(part.sum, hn::GetLane(of_part), scaled);
  all.top = top;
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
