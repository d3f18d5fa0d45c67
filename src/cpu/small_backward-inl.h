// Backward for few rows and few keys: all keys of a head in one tile, P and dP as [key][lane].
//
//   s = K Q^T, dp = V dO^T     by dots, or from transposes of q and dO
//   p = exp(scale s - lse), ds = scale p (dp - delta)    every step vertical, for all heads of the task
//   dV = P^T dO, dK = dS^T Q, dQ = dS K    rows straight into the gradients
//
// Rows that see nothing take part as zeros. A row of dQ that is not finite is summed again over what it sees.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Bf16Storage: as the forward has it.
template <class Bf16Storage>
class SmallBackwardRun : SmallRun {
 public:
  SmallBackwardRun(const BackwardParams& p, const Schedule& schedule, const Launch& launch)
      : SmallRun(p, schedule, launch, true), b_(p) {
    const RowTensor given;  // where delta is given, o is not read
    const auto all = {&p_.q, &p_.k, &p_.v, b_.delta.data ? &given : &p_.o, &b_.dout, &b_.dq, &b_.dk, &b_.dv};
    bf16_ = !b_.accumulate && stored_as(DType::bf16, all);
    f16_ = !b_.accumulate && stored_as(DType::f16, all);
  }

  Status run() {
    each_part([this](SmallLanes& t, int worker) { return task(t, worker); });
    return {};
  }

 private:
  // What a lane's weights are made with.
  struct Stats {
    alignas(64) float lse[kSmallRows];
    alignas(64) float delta[kSmallRows];
  };

  // Rows of a gradient in the making: in place where they are fp32 on whole vectors, `regular`ly apart, and
  // nothing is added to; else in a buffer, head by head.
  template <class Storage>
  struct Target {
    Storage* data;
    int64_t stride, step;  // from row to row, from head to head
    bool in_place;
    // Not in place, where it is fp32.
    const float* row(int h, int64_t i) const {
      return reinterpret_cast<const float*>(data + h * step + i * stride);
    }
  };

  // True where t lost rows or keys that the next head may have.
  bool task(SmallLanes& t, int worker) const {
    const SmallScratch w = scratch(worker);
    bool changed = false;
    if (t.count > 0 && t.keys() > 0) {
      Stats stats;
      changed = hide_dead_rows(t, stats);
      if (bf16_ && !t.dead && widens_loads<Bf16Storage>(t))
        attend<Bf16Storage>(t, w, stats);
      else if (f16_ && !t.dead)
        attend<F16>(t, w, stats);
      else
        attend<float>(t, w, stats);
    } else {
      changed = t.hi != t.lo;
      t.hi = t.lo;
    }
    write_rest(t, w);
    return changed;
  }

  // lse -inf: scores hide what the interval leaves. True where a row was hidden that was not yet.
  bool hide_dead_rows(SmallLanes& t, Stats& stats) const {
    bool changed = false;
    load_stats(t, p_.lse, stats.lse);
    for (int r = 0; r < t.count; ++r) {
      const float lse = stats.lse[r];
      if (lse != kNegativeInfinity && t.first[r] < t.last[r]) continue;
      stats.lse[r] = -kNegativeInfinity;
      t.first[r] = t.last[r] = 0;
      t.partial = t.dead = changed = true;
    }
    std::fill(stats.lse + t.count, stats.lse + t.width, -kNegativeInfinity);
    return changed;
  }

  // D = rowsum(dO o O), or as given, minus the gradient of lse.
  template <class Storage>
  void load_delta(const SmallLanes& t, const TaskRows<Storage>& dout, const SmallScratch& w,
                  Stats& stats) const {
    if (b_.delta.data) {
      load_stats(t, b_.delta, stats.delta);
    } else {
      const TaskRows<Storage> o = query_rows<Storage>(t, p_.o, p_.head_dim_v, sizes_.pitch_v, w.o);
      LanePointers<Storage> x, y;
      for (int h = 0, r = 0; h < t.heads; ++h) {
        for (int i = 0; i < t.rows; ++i, ++r) {
          x.at[r] = dout.of(h).row(i);
          y.at[r] = o.of(h).row(i);
        }
      }
      x.close(t.count);
      y.close(t.count);
      for (int r = 0; r < t.count; r += 4)
        FourRowScores<false, Storage, Storage>(x.at + r, y.at + r, 0, dim_v_, 1, stats.delta + r, t.width);
    }
    if (b_.dlse.data) {
      float dlse[kSmallRows];
      load_stats(t, b_.dlse, dlse);
      for (int r = 0; r < t.count; ++r) stats.delta[r] -= dlse[r];
    }
    std::fill(stats.delta + t.count, stats.delta + t.width, 0.0f);
  }

  // Storage: of every tensor, or float where rows go through buffers.
  template <class Storage>
  void attend(const SmallLanes& t, const SmallScratch& w, Stats& stats) const {
    const auto q = query_rows<Storage>(t, p_.q, p_.head_dim, sizes_.pitch_qk, w.q),
               dout = query_rows<Storage>(t, b_.dout, p_.head_dim_v, sizes_.pitch_v, w.dout);
    const auto k = key_rows<Storage>(t, p_.k, p_.head_dim, sizes_.pitch_qk, w.k),
               v = key_rows<Storage>(t, p_.v, p_.head_dim_v, sizes_.pitch_v, w.v);
    load_delta(t, dout, w, stats);
    scores(t, q, k, p_.head_dim, w.q_t, w.k, sizes_.pitch_qk, w.s);
    scores(t, dout, v, p_.head_dim_v, w.dout_t, w.v, sizes_.pitch_v, w.ds);
    gradients(t, stats, w.s, w.ds);
    const int64_t key = t.sequence.kv_begin + t.lo;
    const auto dv = target<Storage>(b_.dv, b_.dv.at(t.b, key, t.head_kv), true, p_.head_dim_v, w.out),
               dk = target<Storage>(b_.dk, b_.dk.at(t.b, key, t.head_kv), true, p_.head_dim, w.out),
               dq = target<Storage>(b_.dq, row_at(t, b_.dq, 0), p_.group() == 1, p_.head_dim, w.out);
    for (int h = 0; h < t.heads; ++h) {
      if (b_.dv.data) key_gradient(t, b_.dv, dv, h, w.s, dout.of(h), p_.head_dim_v);
      if (b_.dk.data) key_gradient(t, b_.dk, dk, h, w.ds, q.of(h), p_.head_dim);
      if (b_.dq.data) query_gradient(t, dq, h, w.ds, k.of(h));
    }
  }

  // dV = P^T dO or dK = dS^T Q of the task's key head h.
  template <class Storage>
  void key_gradient(const SmallLanes& t, const RowTensor& out, const Target<Storage>& to, int h,
                    const float* s, const Rows<Storage>& rows, int64_t dim) const {
    Storage* made = to.data + h * to.step;
    for (int i = 0; i < t.keys_count; ++i) {
      const Piece& tile = t.keys_rows[i];
      SmallProduct<true>(tile.last - tile.first, tile.end - tile.begin,
                         s + tile.first * t.width + h * t.rows + tile.begin, t.width, rows.from(tile.begin),
                         made + tile.first * to.stride, to.stride,
                         static_cast<int>(multiple_of(kLanes, dim)));
    }
    for (int j = 0; j < t.keys() && !to.in_place; ++j)
      write_row(out, out.at(t.b, t.sequence.kv_begin + t.lo + j, t.head_kv + h), to.row(h, j), dim);
  }

  // dQ = dS K of the rows of the task's key head h.
  template <class Storage>
  void query_gradient(const SmallLanes& t, const Target<Storage>& to, int h, const float* ds,
                      const Rows<Storage>& k) const {
    const int first = h * t.rows;
    Storage* made = to.data + h * to.step;
    for (int i = 0; i < t.rows_count; ++i) {
      const Piece& tile = t.rows_keys[i];
      SmallProduct<false>(tile.end - tile.begin, tile.last - tile.first,
                          ds + tile.first * t.width + first + tile.begin, t.width, k.from(tile.first),
                          made + tile.begin * to.stride, to.stride, dim_);
    }
    if (!FiniteRows(made, dim_, t.rows, to.stride))
      for (int i = 0; i < t.rows; ++i)
        WeightedSum(ds + first + i, t.width, k, t.first[first + i], t.last[first + i], dim_,
                    made + i * to.stride);
    for (int i = 0; i < t.rows && !to.in_place; ++i)
      write_row(b_.dq, row_at(t, b_.dq, first + i), to.row(h, i), p_.head_dim);
  }

  // Scores and dP become P and dS; 0 where the pair is hidden.
  void gradients(const SmallLanes& t, const Stats& stats, float* s, float* ds) const {
    const D d;
    const hn::RebindToSigned<D> di;
    const V scale = hn::Set(d, p_.scale), log2e = hn::Set(d, kLog2E);
    for (int i = 0; i < t.strip_count; ++i) {
      const Piece& strip = t.strips[i];
      for (int x = strip.begin; x < strip.end; x += kLanes) {
        const auto first = hn::Load(di, t.first + x), last = hn::Load(di, t.last + x);
        const V lse = hn::Load(d, stats.lse + x), delta = hn::Load(d, stats.delta + x);
        for (int j = strip.first; j < strip.last; ++j) {
          const int64_t at = static_cast<int64_t>(j) * t.width + x;
          // score - lse is rounded once, as a difference: both can be large beside it.
          V p = Exp2(hn::Mul(hn::MulSub(hn::Load(d, s + at), scale, lse), log2e));
          V g = hn::Mul(hn::Mul(scale, p), hn::Sub(hn::Load(d, ds + at), delta));
          if (t.partial) {
            const auto out = OutsideInterval(first, last, j);
            p = hn::IfThenZeroElse(out, p);
            g = hn::IfThenZeroElse(out, g);
          }
          hn::Store(p, d, s + at);
          hn::Store(g, d, ds + at);
        }
      }
    }
  }

  // `at`: the task's first row.
  template <class Storage>
  Target<Storage> target(const RowTensor& tensor, int64_t at, bool regular, int64_t dim,
                         float* buffer) const {
    const bool there =
        !std::is_same_v<Storage, float> || (regular && !b_.accumulate && in_place(tensor, at, dim));
    if (tensor.data && there)
      return {static_cast<Storage*>(tensor.data) + at, tensor.row_stride, tensor.head_stride, true};
    return {reinterpret_cast<Storage*>(buffer), multiple_of(16, dim), 0, false};
  }

  void write_row(const RowTensor& tensor, int64_t at, const float* values, int64_t dim) const {
    StoreGradientRow(tensor, at, values, dim, 1.0f, b_.accumulate);
  }

  // Zeros: dK and dV of keys outside the tile, dQ of rows that no product made.
  void write_rest(const SmallLanes& t, const SmallScratch& w) const {
    if (b_.accumulate) return;
    const Sequence& s = t.sequence;
    const int64_t group = p_.group();
    const auto clear = [&](const RowTensor& tensor, int64_t row, int64_t head, int64_t dim) {
      StoreRow(tensor, tensor.at(t.b, row, head), w.out, dim, 0.0f, true);
    };
    for (int64_t h = t.head_kv; h < t.head_kv + t.heads; ++h) {
      for (int64_t j = 0; j < s.rows_kv; ++j) {
        if (j == t.lo) j = t.hi;
        if (j >= s.rows_kv) break;
        clear(b_.dk, s.kv_begin + j, h, p_.head_dim);
        clear(b_.dv, s.kv_begin + j, h, p_.head_dim_v);
      }
      for (int64_t i = t.keys() > 0 ? s.len_q : 0; i < s.rows_q; ++i)
        for (int64_t g = 0; g < group; ++g) clear(b_.dq, s.q_begin + i, h * group + g, p_.head_dim);
    }
  }

  const BackwardParams& b_;
  bool bf16_, f16_;  // every row that is read or written
};

template <class Bf16Storage>
Status SmallBackward(const Kernel&, const BackwardParams& p, const Schedule& schedule, const Launch& launch) {
  return SmallBackwardRun<Bf16Storage>(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
