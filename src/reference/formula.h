// The definition of attention: plain loops in index order, one row at a time, written once and run in three
// arithmetics: double (the oracle), float (naive: what three-step attention in fp32 gives) and Magnitude (A
// of the tolerance rule).
//
//   score(i, j)  = cap(scale * q_i . k_j) + bias - slope |p_i - j|          for the keys that i sees
//   lse_i        = log( sum_j exp(score) [+ exp(sink)] )                    -inf where that sum is empty
//   o_i          = sum_j drop(exp(score - lse)) v_j
//   dS(i, j)     = P (dP - D_i + dlse_i)    P = exp(score - lse), dP = drop(dout_i . v_j), D_i = dout_i . o_i
//   dv_j = sum_i drop(P) dout_i   dq_i = scale sum_j dX k_j   dk_j = scale sum_i dX q_i   dX = cap' dS
//   dbias(i, j) = dS   dsink = sum_i exp(sink - lse_i) (dlse_i - D_i)
//
// A key whose score is -inf weighs exactly 0 and is not seen, whatever made the score so. What a row does not
// see is never read, so its NaN cannot matter.
#ifndef TILEWISE_REFERENCE_FORMULA_H_
#define TILEWISE_REFERENCE_FORMULA_H_

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/dropout.h"
#include "reference/elements.h"
#include "reference/magnitude.h"
#include "reference/visible.h"

namespace tilewise {

inline double value_of(double x) { return x; }
inline double value_of(float x) { return x; }
inline double value_of(Magnitude x) { return x.value; }

// P and dS as stored between the steps: rounded in the naive run only.
template <typename Real>
Real stored_as(DType, Real x) {
  return x;
}
inline float stored_as(DType dtype, float x) { return static_cast<float>(rounded_to(dtype, x)); }

// One sequence and one query head, with its key head's rows gathered.
template <typename Real>
class HeadFormula {
 public:
  struct Score {
    Real scaled{}, capped{}, full{};  // after scale; after softcap; after bias and ALiBi
    Real slope{};                     // d capped / d scaled
  };
  struct RowResult {
    std::vector<Real> o;
    std::vector<Real> o_divided_last;  // naive run: weights rounded before, o divided after their sum
    Real lse{};
    std::vector<int64_t> keys;  // that the row sees
    std::vector<Real> weights;  // of those keys, before dropout
  };

  HeadFormula(const ForwardParams& params, int64_t batch, int64_t head)
      : p(params),
        b(batch),
        h(head),
        kv_head(head / params.group()),
        shape(shape_of_sequence(params, batch)),
        scale(Real(params.scale)),
        drop_scale(Real(params.dropout_threshold >= 65536
                            ? 0.0
                            : 65536.0 / (65536.0 - static_cast<double>(params.dropout_threshold)))) {
    k.resize(static_cast<size_t>(shape.kv_rows * p.head_dim));
    v.resize(static_cast<size_t>(shape.kv_rows * p.head_dim_v));
    for (int64_t j = shape.key_begin; j < shape.key_end; ++j) {
      if (!has_memory(p, b, j)) continue;
      gather_key(p.k, p.k_scales, j, p.head_dim, &k[at(j, p.head_dim)]);
      gather_key(p.v, p.v_scales, j, p.head_dim_v, &v[at(j, p.head_dim_v)]);
    }
  }

  std::vector<Real> query_row(const RowTensor& t, int64_t i, int64_t dim) const {
    std::vector<Real> row(static_cast<size_t>(dim));
    gather(t, offset_of(t, b, shape.q_begin, i, h), dim, row.data());
    return row;
  }

  Score score_of(const std::vector<Real>& q, int64_t i, int64_t j) const {
    using std::tanh;
    Real dot{};
    double squares = 0.0;
    for (int64_t d = 0; d < p.head_dim; ++d) {
      dot += q[at(d, 1)] * k[at(j, p.head_dim) + at(d, 1)];
      note_partial_sum(dot, &squares);
    }
    dot = with_partial_sums(dot, squares);
    Score s;
    s.scaled = scale * dot;
    s.capped = s.scaled;
    s.slope = Real(1.0);
    if (p.softcap != 0.0f) {
      const Real t = tanh(s.scaled / Real(p.softcap));
      s.capped = Real(p.softcap) * t;
      s.slope = Real(1.0) - t * t;
    }
    s.full = s.capped;
    if (p.bias.data != nullptr) {
      s.full += Real(read_element(p.bias.data, p.bias.dtype, offset_of(p.bias, b, h, i, j)));
    }
    if (p.alibi_slopes != nullptr) {
      const double slope = p.alibi_slopes[b * p.alibi_batch_stride + h * p.alibi_head_stride];
      const int64_t distance = i + shape.q_offset - j;
      s.full += Real(-slope) * Real(static_cast<double>(distance < 0 ? -distance : distance));
    }
    return s;
  }

  bool keeps(int64_t i, int64_t j) const {
    return p.dropout_threshold == 0 ||
           dropout_keep(dropout_row(p.dropout_seed, p.dropout_offset, b, h, i), j, p.dropout_threshold);
  }

  RowResult forward_row(int64_t i) const {
    using std::exp;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    RowResult row;
    row.o.assign(static_cast<size_t>(p.head_dim_v), Real(0.0));
    row.lse = Real(-kInfinity);
    if (i >= shape.q_length) return row;

    const std::vector<Real> q = query_row(p.q, i, p.head_dim);
    std::vector<Real> scores;
    Real top(-kInfinity);
    for (int64_t j = shape.key_begin; j < shape.key_end; ++j) {
      if (!sees(p, shape, b, h, i, j)) continue;
      const Real s = score_of(q, i, j).full;
      if (value_of(s) == -kInfinity) continue;
      row.keys.push_back(j);
      scores.push_back(s);
      if (value_of(s) > value_of(top)) top = s;
    }
    const Real key_top = top;
    const double sink = p.sinks != nullptr ? p.sinks[h * p.sinks_stride] : -kInfinity;
    if (row.keys.empty()) {
      row.lse = Real(sink);
      return row;
    }
    if (sink > value_of(top)) top = Real(sink);

    Real sum(0.0);
    for (const Real& s : scores) {
      row.weights.push_back(exp(s - top));
      sum += row.weights.back();
    }
    if (sink != -kInfinity) sum += exp(Real(sink) - top);
    row.lse = log_sum(top, sum, scores, row.weights);

    if constexpr (std::is_same_v<Real, float>)
      row.o_divided_last = divided_last(row, scores, key_top, exp(key_top - top) / sum, i);
    for (size_t n = 0; n < row.keys.size(); ++n) {
      const int64_t j = row.keys[n];
      row.weights[n] = row.weights[n] / sum;
      const Real weight = stored_as(p.v.dtype, dropped(row.weights[n], i, j));
      const Real* v_row = &v[at(j, p.head_dim_v)];
      // A weight that underflows is no zero: its product with an infinity is one.
      const bool vanished = value_of(weight) == 0.0 && keeps(i, j);
      for (int64_t d = 0; d < p.head_dim_v; ++d)
        row.o[at(d, 1)] += vanished && std::isinf(value_of(v_row[d])) ? v_row[d] : weight * v_row[d];
    }
    for (size_t n = 0; n < row.keys.size(); ++n) {
      const Real weight = dropped(row.weights[n], i, row.keys[n]);
      const bool rounded = p.v.dtype == DType::f16 || p.v.dtype == DType::bf16;
      add_score_terms(scores[n], weight, &v[at(row.keys[n], p.head_dim_v)], rounded, &row.o);
    }
    return row;
  }

  // Weights of the keys' largest score = 1, whatever the sink: it joins a fused kernel's row last. `factor`:
  // what they then lack of being divided.
  std::vector<Real> divided_last(const RowResult& row, const std::vector<Real>& scores, Real key_top,
                                 Real factor, int64_t i) const {
    std::vector<Real> o(static_cast<size_t>(p.head_dim_v), Real(0.0));
    for (size_t n = 0; n < row.keys.size(); ++n) {
      const Real weight = stored_as(p.v.dtype, dropped(exp(scores[n] - key_top), i, row.keys[n]));
      const Real* v_row = &v[at(row.keys[n], p.head_dim_v)];
      for (int64_t d = 0; d < p.head_dim_v; ++d) o[at(d, 1)] += weight * v_row[d];
    }
    for (Real& x : o) x = x * factor;
    return o;
  }

  // Sums that row i adds to. dq is row i's; dk, dv are [key rows of the sequence, dim].
  struct Gradients {
    Real* dq = nullptr;
    Real* dk = nullptr;
    Real* dv = nullptr;
    const uint8_t* wants_key = nullptr;  // [key rows]; null = all
    Real* dbias = nullptr;               // [bias_shape]
    Real* dsink = nullptr;
  };

  void backward_row(const BackwardParams& g, int64_t i, const Gradients& sums) const {
    using std::exp;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (i >= shape.q_length) return;
    const double lse = g.lse.data[offset_of(g.lse, b, shape.q_begin, i, h)];
    if (lse == -kInfinity) return;

    const std::vector<Real> q = query_row(g.q, i, g.head_dim);
    const std::vector<Real> dout = query_row(g.dout, i, g.head_dim_v);
    Real delta(0.0);
    if (g.delta.data != nullptr) {
      delta = Real(static_cast<double>(g.delta.data[offset_of(g.delta, b, shape.q_begin, i, h)]));
    } else {
      const std::vector<Real> o = query_row(g.o, i, g.head_dim_v);
      for (int64_t d = 0; d < g.head_dim_v; ++d) delta += dout[at(d, 1)] * o[at(d, 1)];
    }
    Real dlse(0.0);
    if (g.dlse.data != nullptr) {
      dlse = Real(static_cast<double>(g.dlse.data[offset_of(g.dlse, b, shape.q_begin, i, h)]));
    }
    if (sums.dsink != nullptr && g.sinks != nullptr) {
      const double sink = g.sinks[h * g.sinks_stride];
      const Real share = exp(Real(sink) - Real(lse)) * (dlse - delta);
      if (sink != -kInfinity) *sums.dsink += through_score(share, Real(sink), lse);
    }

    for (int64_t j = shape.key_begin; j < shape.key_end; ++j) {
      const bool wants_key = sums.wants_key == nullptr || sums.wants_key[j];
      if (sums.dq == nullptr && sums.dbias == nullptr && !wants_key) continue;
      if (!sees(g, shape, b, h, i, j)) continue;
      const Score s = score_of(q, i, j);
      if (value_of(s.full) == -kInfinity) continue;

      const Real weight = exp(s.full - Real(lse));
      const Real* v_row = &v[at(j, g.head_dim_v)];
      Real dp(0.0);
      for (int64_t d = 0; d < g.head_dim_v; ++d) dp += dout[at(d, 1)] * v_row[d];
      const Real ds = through_score(weight * (dropped(dp, i, j) - delta + dlse), s.full, lse);
      if (sums.dbias != nullptr) sums.dbias[bias_at(g, i, j)] += ds;

      const Real dx = stored_as(g.k.dtype, ds * s.slope);
      const Real* k_row = &k[at(j, g.head_dim)];
      if (sums.dq != nullptr) {
        for (int64_t d = 0; d < g.head_dim; ++d) sums.dq[d] += scale * (dx * k_row[d]);
      }
      if (sums.dk != nullptr && wants_key) {
        Real* dk_row = sums.dk + j * g.head_dim;
        for (int64_t d = 0; d < g.head_dim; ++d) dk_row[d] += scale * (dx * q[at(d, 1)]);
      }
      if (sums.dv != nullptr && wants_key) {
        const Real dropped_weight = stored_as(g.v.dtype, through_score(dropped(weight, i, j), s.full, lse));
        Real* dv_row = sums.dv + j * g.head_dim_v;
        for (int64_t d = 0; d < g.head_dim_v; ++d) dv_row[d] += dropped_weight * dout[at(d, 1)];
      }
    }
  }

  const ForwardParams& p;
  const int64_t b, h, kv_head;
  const SequenceShape shape;

 private:
  static size_t at(int64_t row, int64_t dim) { return static_cast<size_t>(row * dim); }

  void gather(const RowTensor& t, int64_t from, int64_t dim, Real* out) const {
    for (int64_t d = 0; d < dim; ++d) out[d] = Real(read_element(t.data, t.dtype, from + d));
  }

  // Key j's row of k or v, times its scale.
  void gather_key(const RowTensor& t, const CacheScales& scales, int64_t j, int64_t dim, Real* out) const {
    gather(t, offset_of_key(p, t, shape, b, j, kv_head), dim, out);
    if (scales.data == nullptr) return;
    const Real scale_of_row(static_cast<double>(scales.data[offset_of_scale(p, scales, b, j, kv_head)]));
    for (int64_t d = 0; d < dim; ++d) out[d] = out[d] * scale_of_row;
  }

  // Dropout's share of one weight, or of one dP.
  Real dropped(Real x, int64_t i, int64_t j) const {
    if (p.dropout_threshold == 0) return x;
    return keeps(i, j) ? x * drop_scale : x * Real(0.0);
  }

  size_t bias_at(const BackwardParams& g, int64_t i, int64_t j) const {
    const int64_t index[4] = {b, h, i, j};
    int64_t flat = 0;
    for (int n = 0; n < 4; ++n) flat = flat * g.bias_shape[n] + (g.bias_shape[n] == 1 ? 0 : index[n]);
    return static_cast<size_t>(flat);
  }

  const Real scale, drop_scale;
  std::vector<Real> k, v;  // [key rows of the sequence, dim]; rows outside [key_begin, key_end) stay 0
};

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_FORMULA_H_
