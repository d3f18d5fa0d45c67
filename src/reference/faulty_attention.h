// An attention for the test of the tolerance rule alone: fp32, online softmax over key tiles, sums in four
// lanes, and one fault at a time, or none.
#ifndef TILEWISE_REFERENCE_FAULTY_ATTENTION_H_
#define TILEWISE_REFERENCE_FAULTY_ATTENTION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/dropout.h"
#include "reference/case_data.h"
#include "reference/elements.h"

namespace tilewise {

enum class Fault {
  none,
  // forward
  missing_scale,
  window_off_by_one,
  causal_off_by_one,
  last_key_dropped,
  softcap_after_mask,
  bf16_accumulators,
  weights_in_bf16,
  scores_in_f16,
  missing_rescale_of_o,
  missing_rescale_of_sum,
  lse_base_2,
  lse_without_max,
  top_left_for_bottom_right,
  interleaved_gqa,
  sink_in_every_tile,
  sink_scaled,
  bias_before_softcap,
  bias_key_as_row,
  dropout_without_scale,
  dropout_before_sum,
  padded_tail_has_weight,
  alibi_without_offset,
  sentinel_maximum,
  coarse_exp,
  score_times_tanh,
  padding_rows_written,
  lse_zero_for_empty,
  // backward
  ds_without_delta,
  missing_dlse,
  dk_without_scale,
  dv_without_dropout,
  dq_of_last_tile_only,
  missing_softcap_slope,
  dk_of_last_head_only,
  dbias_not_reduced,
  dsink_without_dlse,
  dk_accumulated_in_bf16,
  printed_ds_formula,
  padding_rows_in_dk,
  accumulate_overwrites,
};

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int64_t kTile = 16;

inline float bf16(float x) { return static_cast<float>(rounded_to(DType::bf16, static_cast<double>(x))); }

// Four partial sums, as vector code has.
inline float dot(const std::vector<float>& a, const std::vector<float>& b) {
  float lanes[4] = {};
  for (size_t d = 0; d < a.size(); ++d) lanes[d % 4] = std::fma(a[d], b[d], lanes[d % 4]);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

struct TiledAttention {
  const BackwardParams& p;
  Fault fault;

  std::vector<float> row(const RowTensor& t, int64_t b, int64_t begin, int64_t i, int64_t h,
                         int64_t dim) const {
    std::vector<float> out(static_cast<size_t>(dim));
    const int64_t from = offset_of(t, b, begin, i, h);
    for (int64_t d = 0; d < dim; ++d) {
      out[static_cast<size_t>(d)] = static_cast<float>(read_element(t.data, t.dtype, from + d));
    }
    return out;
  }
  int64_t key_head(int64_t h) const {
    return fault == Fault::interleaved_gqa ? h % p.heads_kv : h / p.group();
  }
  float exponential(float x) const {
    if (fault != Fault::coarse_exp) return std::exp(x);
    const float power = std::floor(x * 1.44269504f), r = x - power * 0.69314718f - 0.34657359f;
    return std::ldexp(1.41421356f * (1 + r * (1 + r * (0.5f + r * (0.16666667f)))), static_cast<int>(power));
  }
  bool open(const SequenceShape& s, int64_t b, int64_t h, int64_t i, int64_t j) const {
    SequenceShape shape = s;
    ForwardParams q = p;
    if (fault == Fault::top_left_for_bottom_right) shape.q_offset = 0;
    if (fault == Fault::window_off_by_one && q.window_left >= 0) ++q.window_left;
    if (fault == Fault::causal_off_by_one && q.window_right >= 0) ++q.window_right;
    if (fault == Fault::last_key_dropped) --shape.key_end;
    return sees(q, shape, b, h, i, j);
  }
  float score(const SequenceShape& s, int64_t b, int64_t h, int64_t i, int64_t j, float qk,
              float* slope) const {
    const float cap = p.softcap;
    float x = fault == Fault::missing_scale ? qk : p.scale * qk;
    if (fault == Fault::scores_in_f16)
      x = p.scale * static_cast<float>(rounded_to(DType::f16, static_cast<double>(qk)));
    const int64_t row = fault == Fault::bias_key_as_row ? j : i,
                  key = fault == Fault::bias_key_as_row ? i : j;
    const float bias =
        p.bias.data == nullptr
            ? 0.0f
            : static_cast<float>(read_element(p.bias.data, p.bias.dtype, offset_of(p.bias, b, h, row, key)));
    if (fault == Fault::bias_before_softcap) x += bias;
    *slope = 1.0f;
    if (cap != 0.0f) {
      const float t = std::tanh(x / cap);
      *slope = fault == Fault::missing_softcap_slope ? 1.0f : 1.0f - t * t;
      x = fault == Fault::score_times_tanh ? x * t : cap * t;
    }
    if (fault != Fault::bias_before_softcap) x += bias;
    if (p.alibi_slopes != nullptr) {
      const int64_t offset = fault == Fault::alibi_without_offset ? 0 : s.q_offset;
      x -= p.alibi_slopes[b * p.alibi_batch_stride + h * p.alibi_head_stride] *
           static_cast<float>(std::abs(i + offset - j));
    }
    return x;
  }
  float drop_scale() const {
    if (p.dropout_threshold == 0 || fault == Fault::dropout_without_scale) return 1.0f;
    return dropout_scale_of(p.dropout_threshold);
  }
  bool keeps(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return p.dropout_threshold == 0 ||
           dropout_keep(dropout_row(p.dropout_seed, p.dropout_offset, b, h, i), j, p.dropout_threshold);
  }
  // As stored for the second product: in fp32, as CPU kernels keep it, unless that is the fault.
  float stored(float x) const { return fault == Fault::weights_in_bf16 ? bf16(x) : x; }

  void forward_row(const SequenceShape& s, int64_t b, int64_t h, int64_t i) const {
    const bool padding = i >= s.q_length && fault != Fault::padding_rows_written;
    SequenceShape shape = s;
    if (fault == Fault::padding_rows_written) shape.q_length = shape.q_rows;
    const std::vector<float> q = row(p.q, b, s.q_begin, i, h, p.head_dim);
    std::vector<float> o(static_cast<size_t>(p.head_dim_v), 0.0f);
    float top = fault == Fault::sentinel_maximum ? -5e4f : kLowest, sum = 0.0f;
    const float sink =
        p.sinks == nullptr ? kLowest : p.sinks[h] * (fault == Fault::sink_scaled ? p.scale : 1.0f);
    const int64_t padded =
        fault == Fault::padded_tail_has_weight ? (s.kv_rows + kTile - 1) / kTile * kTile : s.kv_rows;
    for (int64_t j0 = 0; !padding && j0 < padded; j0 += kTile) {
      std::vector<float> scores;
      std::vector<int64_t> keys;
      for (int64_t j = j0; j < std::min(padded, j0 + kTile); ++j) {
        float slope = 0.0f;
        if (j >= s.kv_rows) {
          scores.push_back(0.0f);
          keys.push_back(-1);
        } else if (open(shape, b, h, i, j)) {
          const float qk = dot(q, row(p.k, b, s.kv_begin, j, key_head(h), p.head_dim));
          scores.push_back(score(s, b, h, i, j, qk, &slope));
          keys.push_back(j);
        } else if (fault == Fault::softcap_after_mask && p.softcap != 0.0f) {
          scores.push_back(-p.softcap);
          keys.push_back(j);
        }
      }
      if (scores.empty()) continue;
      float tile_top = top;
      for (const float x : scores) tile_top = std::max(tile_top, x);
      const float rescale = top == kLowest ? 0.0f : exponential(top - tile_top);
      top = tile_top;
      if (fault != Fault::missing_rescale_of_sum) sum *= rescale;
      if (fault != Fault::missing_rescale_of_o) {
        for (float& x : o) x *= rescale;
      }
      for (size_t n = 0; n < scores.size(); ++n) {
        float weight = exponential(scores[n] - top);
        const bool kept = keys[n] < 0 || keeps(b, h, i, keys[n]);
        if (fault == Fault::dropout_before_sum && !kept) weight = 0.0f;
        sum += weight;
        if (keys[n] < 0 || !kept) continue;
        weight = stored(weight * drop_scale());
        const std::vector<float> v = row(p.v, b, s.kv_begin, keys[n], key_head(h), p.head_dim_v);
        for (size_t d = 0; d < o.size(); ++d) {
          o[d] = std::fma(weight, v[d], o[d]);
          if (fault == Fault::bf16_accumulators) o[d] = bf16(o[d]);
        }
      }
      if (fault == Fault::sink_in_every_tile && sink != kLowest) sum += exponential(sink - top);
    }
    float lse = kLowest;
    if (!padding && (top != kLowest || sink != kLowest)) {
      const float merged = std::max(top, sink);
      const float rescale = top == kLowest ? 0.0f : exponential(top - merged);
      sum *= rescale;
      if (sink != kLowest && fault != Fault::sink_in_every_tile) sum += exponential(sink - merged);
      for (float& x : o) x = sum > 0.0f ? x * rescale / sum : 0.0f;
      lse = merged + std::log(sum);
      if (fault == Fault::lse_base_2) lse *= 1.44269504f;
      if (fault == Fault::lse_without_max) lse -= merged;
    }
    if (lse == kLowest && fault == Fault::lse_zero_for_empty) lse = 0.0f;
    const int64_t to = offset_of(p.o, b, s.q_begin, i, h);
    for (int64_t d = 0; d < p.head_dim_v; ++d) {
      write_element(p.o.data, p.o.dtype, to + d, static_cast<double>(o[static_cast<size_t>(d)]));
    }
    p.lse.data[offset_of(p.lse, b, s.q_begin, i, h)] = lse;
  }

  void forward() const {
    for (int64_t b = 0; b < p.batch; ++b) {
      const SequenceShape s = shape_of_sequence(p, b);
      for (int64_t h = 0; h < p.heads_q; ++h) {
        for (int64_t i = 0; i < s.q_rows; ++i) forward_row(s, b, h, i);
      }
    }
  }

  void backward() const {
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    std::vector<float> dbias(size(p.bias_shape[0] * p.bias_shape[1] * p.bias_shape[2] * p.bias_shape[3]),
                             0.0f);
    std::vector<float> dsinks(size(p.heads_q), 0.0f);
    for (int64_t b = 0; b < p.batch; ++b) {
      const SequenceShape s = shape_of_sequence(p, b);
      std::vector<float> dq(size(p.heads_q * s.q_rows * p.head_dim), 0.0f);
      std::vector<float> dk(size(p.heads_kv * s.kv_rows * p.head_dim), 0.0f);
      std::vector<float> dv(size(p.heads_kv * s.kv_rows * p.head_dim_v), 0.0f);
      for (int64_t h = 0; h < p.heads_q; ++h) {
        if (fault == Fault::dk_of_last_head_only && h % p.group() == 0) {
          std::fill_n(dk.begin() + key_head(h) * s.kv_rows * p.head_dim, s.kv_rows * p.head_dim, 0.0f);
        }
        if (fault == Fault::dk_of_last_head_only && (h + 1) % p.group() != 0) continue;
        backward_head(s, b, h, &dq, &dk, &dv, &dbias, &dsinks[size(h)]);
      }
      store(p.dq, b, s.q_begin, s.q_rows, p.heads_q, p.head_dim, dq);
      store(p.dk, b, s.kv_begin, s.kv_rows, p.heads_kv, p.head_dim, dk);
      store(p.dv, b, s.kv_begin, s.kv_rows, p.heads_kv, p.head_dim_v, dv);
    }
    for (size_t n = 0; p.dbias.data != nullptr && n < dbias.size(); ++n) {
      write_element(p.dbias.data, p.dbias.dtype, static_cast<int64_t>(n), static_cast<double>(dbias[n]));
    }
    for (size_t n = 0; p.dsinks != nullptr && n < dsinks.size(); ++n) p.dsinks[n] = dsinks[n];
  }

  void store(const RowTensor& t, int64_t b, int64_t begin, int64_t rows, int64_t heads, int64_t dim,
             const std::vector<float>& values) const {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t at = offset_of(t, b, begin, i, h) + d;
          const bool adds = p.accumulate && fault != Fault::accumulate_overwrites;
          const double before = adds ? read_element(t.data, t.dtype, at) : 0.0;
          write_element(t.data, t.dtype, at,
                        before + static_cast<double>(values[static_cast<size_t>((h * rows + i) * dim + d)]));
        }
      }
    }
  }

  void backward_head(const SequenceShape& s, int64_t b, int64_t h, std::vector<float>* dq,
                     std::vector<float>* dk, std::vector<float>* dv, std::vector<float>* dbias,
                     float* dsink) const {
    SequenceShape shape = s;
    if (fault == Fault::padding_rows_in_dk) shape.q_length = shape.q_rows;
    const int64_t kv = key_head(h);
    for (int64_t j0 = 0; j0 < s.kv_rows; j0 += kTile) {
      for (int64_t i = 0; i < shape.q_length; ++i) {
        const int64_t stat = offset_of(p.lse, b, s.q_begin, i, h);
        float lse = p.lse.data[stat];
        if (fault == Fault::padding_rows_in_dk && i >= s.q_length) lse = 0.0f;
        if (lse == kLowest) continue;
        const std::vector<float> q = row(p.q, b, s.q_begin, i, h, p.head_dim);
        const std::vector<float> dout = row(p.dout, b, s.q_begin, i, h, p.head_dim_v);
        const float delta =
            fault == Fault::ds_without_delta ? 0.0f : dot(dout, row(p.o, b, s.q_begin, i, h, p.head_dim_v));
        const float dlse = p.dlse.data == nullptr || fault == Fault::missing_dlse ? 0.0f : p.dlse.data[stat];
        if (j0 == 0 && p.sinks != nullptr) {
          *dsink -= std::exp(p.sinks[h] - lse) * (delta - (fault == Fault::dsink_without_dlse ? 0.0f : dlse));
        }
        float* dq_row = dq->data() + (h * s.q_rows + i) * p.head_dim;
        if (fault == Fault::dq_of_last_tile_only) std::fill_n(dq_row, p.head_dim, 0.0f);
        for (int64_t j = j0; j < std::min(s.kv_rows, j0 + kTile); ++j) {
          if (!open(shape, b, h, i, j)) continue;
          const std::vector<float> k = row(p.k, b, s.kv_begin, j, kv, p.head_dim);
          const std::vector<float> v = row(p.v, b, s.kv_begin, j, kv, p.head_dim_v);
          float slope = 0.0f;
          const float weight = std::exp(score(s, b, h, i, j, dot(q, k), &slope) - lse);
          const float drop = keeps(b, h, i, j) ? drop_scale() : 0.0f;
          const float dp = drop * dot(dout, v);
          float ds = weight * (dp - (delta - dlse));
          if (fault == Fault::printed_ds_formula) ds = weight * dp - weight * (weight * dp);
          if (p.dbias.data != nullptr) {
            const int64_t index[4] = {b, h, i, j};
            int64_t at = 0;
            for (int n = 0; n < 4; ++n) at = at * p.bias_shape[n] + (p.bias_shape[n] == 1 ? 0 : index[n]);
            float& sum = (*dbias)[static_cast<size_t>(at)];
            sum = fault == Fault::dbias_not_reduced ? ds : sum + ds;
          }
          const float dx = stored(ds * slope);
          float* dk_row = dk->data() + (kv * s.kv_rows + j) * p.head_dim;
          float* dv_row = dv->data() + (kv * s.kv_rows + j) * p.head_dim_v;
          const float k_scale = fault == Fault::dk_without_scale ? 1.0f : p.scale;
          for (int64_t d = 0; d < p.head_dim; ++d) {
            dq_row[d] = std::fma(p.scale * dx, k[static_cast<size_t>(d)], dq_row[d]);
            dk_row[d] = std::fma(k_scale * dx, q[static_cast<size_t>(d)], dk_row[d]);
            if (fault == Fault::dk_accumulated_in_bf16) dk_row[d] = bf16(dk_row[d]);
          }
          const float kept = stored(fault == Fault::dv_without_dropout ? weight : weight * drop);
          for (int64_t d = 0; d < p.head_dim_v; ++d) {
            dv_row[d] = std::fma(kept, dout[static_cast<size_t>(d)], dv_row[d]);
          }
        }
      }
    }
  }
};

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_FAULTY_ATTENTION_H_
