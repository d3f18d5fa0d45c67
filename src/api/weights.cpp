// attention_weights: chosen rows of P, exactly, in double precision. For looking, not for speed: a device's
// tensors are copied to the host.
#include <cmath>
#include <limits>
#include <vector>

#include "api/bind.h"
#include "api/border.h"
#include "api/context.h"
#include "api/host_copies.h"
#include "core/cache.h"
#include "core/element.h"
#include "cuda/runtime.h"

namespace tilewise {
namespace {

class RowWeights {
 public:
  explicit RowWeights(const ForwardParams& p) : p_(p) {}

  // P of row i over the keys of its sequence, into scores[0, seqlen_kv); 0 where it does not see.
  void compute(int64_t b, int64_t h, int64_t i, std::vector<double>& scores) const {
    std::fill(scores.begin(), scores.end(), 0.0);
    const Sequence s = sequence_of(p_, b);
    const Interval keys = visible_keys(p_, s, b, i);
    double top = p_.sinks ? static_cast<double>(p_.sinks[h * p_.sinks_stride]) : -kInfinity;
    for (int64_t j = keys.lo; j < keys.hi; ++j) {
      if (!sees(s, b, h, i, j)) continue;
      const double score = score_of(s, b, h, i, j);
      scores[static_cast<size_t>(j)] = score;
      if (!(score <= top)) top = score;
    }
    if (top == -kInfinity) return std::fill(scores.begin(), scores.end(), 0.0);
    double sum = p_.sinks ? std::exp(static_cast<double>(p_.sinks[h * p_.sinks_stride]) - top) : 0.0;
    for (int64_t j = keys.lo; j < keys.hi; ++j) {
      double& score = scores[static_cast<size_t>(j)];
      score = sees(s, b, h, i, j) ? std::exp(score - top) : 0.0;
      sum += score;
    }
    for (int64_t j = keys.lo; j < keys.hi; ++j) {
      if (sees(s, b, h, i, j)) scores[static_cast<size_t>(j)] /= sum;
    }
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  double bias_of(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const ScoreTensor& t = p_.bias;
    return load_element(t.data, t.dtype,
                        b * t.batch_stride + h * t.head_stride + i * t.row_stride + j * t.key_stride);
  }

  bool sees(const Sequence& s, int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!mask_allows(p_.mask, b, h, i, j)) return false;
    // Selected, not added: a NaN key behind a bias of -inf has no effect.
    if (p_.bias.data && bias_of(b, h, i, j) == -kInfinity) return false;
    if (!p_.segment_ids_q.data) return true;
    return read_row_index(p_.segment_ids_q, b, s.q_begin, i) ==
           read_row_index(p_.segment_ids_kv, b, s.kv_begin, j);
  }

  double score_of(const Sequence& s, int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t q = b * p_.q.batch_stride + (s.q_begin + i) * p_.q.row_stride + h * p_.q.head_stride;
    const KeyRun key = key_run(p_, s, b, j, 1);
    const int64_t k = p_.k.at(key.block, key.row, h / p_.group());
    double score = 0;
    for (int64_t d = 0; d < p_.head_dim; ++d)
      score += load_element(p_.q.data, p_.q.dtype, q + d) * load_element(p_.k.data, p_.k.dtype, k + d);
    score *= static_cast<double>(p_.scale) *
             static_cast<double>(p_.k_scales.at(key.block, scale_group(p_, s, key), h / p_.group()));
    if (p_.softcap > 0)
      score = static_cast<double>(p_.softcap) * std::tanh(score / static_cast<double>(p_.softcap));
    if (p_.bias.data) score += bias_of(b, h, i, j);
    if (p_.alibi_slopes) {
      const double slope =
          static_cast<double>(p_.alibi_slopes[b * p_.alibi_batch_stride + h * p_.alibi_head_stride]);
      score -= slope * std::fabs(static_cast<double>(i + s.q_offset - j));
    }
    return score;
  }

  const ForwardParams& p_;
};

Status check_outputs(const ForwardParams& p, Place place, const tilewise_tensor& rows,
                     const tilewise_tensor& weights) {
  TensorChecks checks(place.kind, place.index);
  if (!checks.require("rows", rows) || !checks.require("weights", weights) ||
      !checks.rank("rows", rows, 1, "[R]") || !checks.dtype("rows", rows, {DType::i32}) ||
      !checks.dtype("weights", weights, {DType::f32}) ||
      !checks.layout("rows", rows, {1, {rows.shape[0], 0, 0, 0}, "[R]"}, {}) ||
      !checks.layout("weights", weights,
                     {4, {p.batch, p.heads_q, rows.shape[0], p.seqlen_kv}, "[batch, heads_q, R, seqlen_kv]"},
                     {Access::output, false, 1}) ||
      !checks.overlaps())
    return checks.take_status();
  return {};
}

Status check_rows(const ForwardParams& p, const tilewise_tensor& rows) {
  for (int64_t r = 0; r < rows.shape[0]; ++r) {
    const int32_t row = static_cast<const int32_t*>(rows.data)[r * stride_of(rows, 0)];
    if (row < 0 || row >= p.seqlen_q)
      return {Code::invalid,
              cat("rows[", r, "] is ", row, "; accepted: 0 to ", p.seqlen_q - 1, ", the rows of q")};
  }
  return {};
}

// Everything on the host.
Status compute_weights(const tilewise_context& context, const tilewise_problem& problem,
                       const tilewise_tensors& t, const tilewise_tensor& rows,
                       const tilewise_tensor& weights) {
  ForwardParams p;
  if (Status s = bind_scores(problem, Place(), t, &p); !s.ok()) return s;
  if (Status s = check_values(problem, p, context.options.check_data != 0); !s.ok()) return s;
  if (Status s = check_rows(p, rows); !s.ok()) return s;
  const int64_t count = rows.shape[0];
  const int workers = context.executor->workers();
  std::vector<std::vector<double>> scores(static_cast<size_t>(workers),
                                          std::vector<double>(static_cast<size_t>(p.seqlen_kv)));
  const RowWeights exact(p);
  auto body = [&](int64_t index, int worker) {
    const int64_t r = index % count, h = index / count % p.heads_q, b = index / count / p.heads_q;
    auto& row = scores[static_cast<size_t>(worker)];
    exact.compute(b, h, static_cast<const int32_t*>(rows.data)[r * stride_of(rows, 0)], row);
    float* out = static_cast<float*>(weights.data) + b * stride_of(weights, 0) + h * stride_of(weights, 1) +
                 r * stride_of(weights, 2);
    for (int64_t j = 0; j < p.seqlen_kv; ++j)
      out[j * stride_of(weights, 3)] = static_cast<float>(row[static_cast<size_t>(j)]);
  };
  context.executor->run(p.batch * p.heads_q * count, workers, body);
  return {};
}

Status attention_weights(const tilewise_context& context, const tilewise_problem& options,
                         const tilewise_tensors& given, const tilewise_tensor& rows,
                         const tilewise_tensor& weights) {
  tilewise_tensors t = given;
  if (!present(t.v)) t.v = t.k;  // not read
  t.o = t.lse = t.dropout_state = tilewise_tensor{};
  tilewise_problem forward = options, problem;
  forward.direction = TILEWISE_FORWARD;
  forward.wants = forward.accumulate = 0;
  forward.dropout_p = 0;
  if (Status s = problem_from_tensors(forward, t, &problem); !s.ok()) return s;
  t.v = t.dout = t.dlse = t.delta = t.dq = t.dk = t.dv = t.dbias = t.dsinks = tilewise_tensor{};
  const Place place{t.q.device_kind, t.q.device_index};
  ForwardParams p;
  if (Status s = bind_scores(problem, place, t, &p); !s.ok()) return s;
  if (Status s = check_outputs(p, place, rows, weights); !s.ok()) return s;
  if (place.kind == TILEWISE_CPU) return compute_weights(context, problem, t, rows, weights);

  if (Status s = cuda::synchronize(place.index); !s.ok()) return s;  // what writes the tensors, on any stream
  HostCopies copies(place.index);
  tilewise_tensor host_rows = rows, host_weights = weights;
  if (Status s = copies.take(&t); !s.ok()) return s;
  for (tilewise_tensor* own : {&host_rows, &host_weights}) {
    if (Status s = copies.take(own); !s.ok()) return s;
  }
  if (Status s = compute_weights(context, problem, t, host_rows, host_weights); !s.ok()) return s;
  return copies.give_back(host_weights, weights);
}

}  // namespace
}  // namespace tilewise

tilewise_code tilewise_attention_weights(tilewise_context* context, const tilewise_problem* options,
                                         const tilewise_tensors* tensors, const tilewise_tensor* rows,
                                         const tilewise_tensor* weights, tilewise_error* error) {
  using namespace tilewise;
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!options) return null_argument("options");
    if (!tensors) return null_argument("tensors");
    if (!rows) return null_argument("rows");
    if (!weights) return null_argument("weights");
    return attention_weights(*context, *options, *tensors, *rows, *weights);
  });
}
