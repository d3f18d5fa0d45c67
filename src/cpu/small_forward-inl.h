// Forward for few rows and few keys: all keys of a head in one tile, scores as s[key][lane].
//
//   s = K Q^T           by dots, or from a transpose of q
//   p = 2^(c s - c m) / sum    every step vertical, for all heads of the task at once
//   O = P V             rows straight into o
//
// A weight of -0 marks a hidden pair; where a row of O is not finite it is summed again over what it sees.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Bf16Storage: Bf16, or the type that stands for it where an instruction set has products of its own.
template <class Bf16Storage>
class SmallForwardRun : SmallRun {
 public:
  SmallForwardRun(const ForwardParams& p, const Schedule& schedule, const Launch& launch)
      : SmallRun(p, schedule, launch, false) {}

  Status run() {
    const auto all = {&p_.q, &p_.k, &p_.v, &p_.o};
    const bool bf16 = stored_as(DType::bf16, all), f16 = stored_as(DType::f16, all);
    each_part([this, bf16, f16](SmallLanes& t, int worker) {
      if (t.count > 0) {
        const SmallScratch w = scratch(worker);
        if (bf16 && !t.dead && widens_loads<Bf16Storage>(t))
          attend<Bf16Storage>(t, w);
        else if (f16 && !t.dead)
          attend<F16>(t, w);
        else
          attend<float>(t, w);
      }
      write_padding(t);
      return false;
    });
    return {};
  }

 private:
  // Storage: of every tensor, or float where rows go through buffers.
  template <class Storage>
  void attend(const SmallLanes& t, const SmallScratch& w) const {
    const TaskRows<Storage> q = query_rows<Storage>(t, p_.q, p_.head_dim, sizes_.pitch_qk, w.q);
    const TaskRows<Storage> k = key_rows<Storage>(t, p_.k, p_.head_dim, sizes_.pitch_qk, w.k);
    scores(t, q, k, p_.head_dim, w.q_t, w.k, sizes_.pitch_qk, w.s);
    softmax(t, w.s);
    const TaskRows<Storage> v_rows = key_rows<Storage>(t, p_.v, p_.head_dim_v, sizes_.pitch_v, w.v);
    const int64_t at = row_at(t, p_.o, 0);
    const bool made_in_place =
        !std::is_same_v<Storage, float> || (p_.group() == 1 && in_place(p_.o, at, p_.head_dim_v));
    const int64_t stride = made_in_place ? p_.o.row_stride : sizes_.pitch_v;
    for (int h = 0; h < t.heads; ++h) {
      const Rows<Storage> v = v_rows.of(h);
      const int first = h * t.rows;
      Storage* o = made_in_place ? static_cast<Storage*>(p_.o.data) + at + h * p_.o.head_stride
                                 : reinterpret_cast<Storage*>(w.out);
      for (int i = 0; i < t.rows_count; ++i) {
        const Piece& tile = t.rows_keys[i];
        SmallProduct<false>(tile.end - tile.begin, tile.last - tile.first,
                            w.s + tile.first * t.width + first + tile.begin, t.width, v.from(tile.first),
                            o + tile.begin * stride, stride, dim_v_);
      }
      // What is not finite may come from keys that the row does not see.
      if (!FiniteRows(o, dim_v_, t.rows, stride))
        for (int i = 0; i < t.rows; ++i)
          SeenSum(w.s + first + i, t.width, v, t.first[first + i], t.last[first + i], dim_v_, o + i * stride);
      if (made_in_place) continue;
      for (int i = 0; i < t.rows; ++i)
        StoreRow(p_.o, row_at(t, p_.o, first + i), w.out + i * stride, p_.head_dim_v, 1.0f, false);
    }
  }

  // Scores become weights that add up to 1 (or to what a sink leaves); lse is written.
  void softmax(const SmallLanes& t, float* s) const {
    const D d;
    const int ld = t.width;
    alignas(64) float top_of[kSmallRows], sum_of[kSmallRows], factors[kSmallRows];
    for (int i = 0; i < t.strip_count; ++i) {
      const Piece& strip = t.strips[i];
      const int n = strip.last - strip.first;
      float* at = s + strip.first * ld;
      for (int x = strip.begin; x < strip.end; x += kLanes) {
        hn::Store(masked_maximum(t, at + x, x, strip.first, n), d, top_of + x);
        hn::Store(hn::Zero(d), d, sum_of + x);
      }
      ExponentialsMarked<false>(factor_of(p_), at + strip.begin, ld, n, strip.end - strip.begin,
                                top_of + strip.begin, sum_of + strip.begin);
    }
    if (!finish_plain(t, top_of, sum_of, factors))
      for (int r = 0; r < t.count; ++r) factors[r] = finish(t, r, top_of[r], sum_of[r]);
    std::fill(factors + t.count, factors + ld, 0.0f);
    for (int i = 0; i < t.strip_count; ++i) {
      const Piece& strip = t.strips[i];
      for (int64_t j = strip.first; j < strip.last; ++j)
        Multiply(s + j * ld + strip.begin, factors + strip.begin, strip.end - strip.begin);
    }
  }

  // Of one vector of lanes over the keys [key, key + n), whose scores get their sign; -inf where hidden.
  V masked_maximum(const SmallLanes& t, float* at, int lane, int key, int n) const {
    const D d;
    const hn::RebindToSigned<D> di;
    const V hidden = hn::Set(d, kNegativeInfinity), sign = hn::Set(d, sign_of(p_));
    const auto first = hn::Load(di, t.first + lane), last = hn::Load(di, t.last + lane);
    V top = hidden;
    for (int j = key; j < key + n; ++j, at += t.width) {
      V score = hn::Mul(sign, hn::Load(d, at));
      if (t.partial) score = hn::IfThenElse(OutsideInterval(first, last, j), hidden, score);
      hn::Store(score, d, at);
      top = hn::Max(top, score);
    }
    return top;
  }

  // `finish` of all rows at once, where there is no sink and every sum is a number: else false.
  bool finish_plain(const SmallLanes& t, const float* top, const float* sum, float* factors) const {
    if (p_.sinks || t.dead) return false;
    const D d;
    const V unit = hn::Set(d, factor_of(p_)), one = hn::Set(d, 1.0f),
            infinity = hn::Set(d, -kNegativeInfinity);
    constexpr auto kHigh = static_cast<float>(kLn2Double);
    const V high = hn::Set(d, kHigh), low = hn::Set(d, static_cast<float>(kLn2Double - double{kHigh}));
    alignas(64) float lse[kSmallRows];
    for (int x = 0; x < t.count; x += kLanes) {
      V total = hn::Load(d, sum + x);
      if (x + kLanes > t.count)
        total = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(t.count - x)), total, one);
      if (!hn::AllTrue(d, hn::And(hn::Gt(total, hn::Zero(d)), hn::Lt(total, infinity)))) return false;
      const V scaled = hn::Mul(hn::Load(d, top + x), unit);  // as the weights have it
      hn::Store(hn::MulAdd(scaled, high, hn::MulAdd(scaled, low, hn::Log(d, total))), d, lse + x);
      hn::Store(hn::Div(one, total), d, factors + x);
    }
    if (p_.lse.data) store_stats(t, lse, p_.lse);
    return true;
  }

  // Writes a row's lse; returns what its weights are multiplied by.
  float finish(const SmallLanes& t, int r, float top, float sum) const {
    const int64_t head = t.head[r];
    const RowEnd end = EndOfRow(p_, false, top, sum, SinkOf(p_, head));
    if (p_.lse.data) p_.lse.at(t.b, t.sequence.q_begin + t.query[r], head) = end.lse;
    return end.factor;
  }

  // Rows past q_lengths.
  void write_padding(const SmallLanes& t) const {
    const Sequence& s = t.sequence;
    const int64_t group = p_.group();
    for (int64_t i = s.len_q; i < s.rows_q; ++i) {
      for (int64_t head = t.head_kv * group; head < (t.head_kv + t.heads) * group; ++head) {
        StoreRow(p_.o, p_.o.at(t.b, s.q_begin + i, head), nullptr, p_.head_dim_v, 0.0f, true);
        if (p_.lse.data) p_.lse.at(t.b, s.q_begin + i, head) = kNegativeInfinity;
      }
    }
  }
};

template <class Bf16Storage>
Status SmallForward(const Kernel&, const ForwardParams& p, const Schedule& schedule, const Launch& launch) {
  return SmallForwardRun<Bf16Storage>(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
