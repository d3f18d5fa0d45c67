// attention_weights: chosen rows of P, exactly, in double precision. For looking, not for speed.
#include <vector>

#include "api/bind.h"
#include "api/border.h"
#include "api/context.h"
#include "core/mask.h"
#include "reference/oracle.h"

namespace tilewise {
namespace {

Status check_outputs(const ForwardParams& p, const tilewise_tensor& rows, const tilewise_tensor& weights) {
  TensorChecks checks(TILEWISE_CPU);
  if (!checks.require("rows", rows) || !checks.require("weights", weights) ||
      !checks.rank("rows", rows, 1, "[R]") || !checks.dtype("rows", rows, {DType::i32}) ||
      !checks.dtype("weights", weights, {DType::f32}) ||
      !checks.layout("rows", rows, {1, {rows.shape[0], 0, 0, 0}, "[R]"}, {}) ||
      !checks.layout("weights", weights,
                     {4, {p.batch, p.heads_q, rows.shape[0], p.seqlen_kv}, "[batch, heads_q, R, seqlen_kv]"},
                     {Access::output, false, 1}) ||
      !checks.overlaps())
    return checks.take_status();
  for (int64_t r = 0; r < rows.shape[0]; ++r) {
    const int32_t row = static_cast<const int32_t*>(rows.data)[r * stride_of(rows, 0)];
    if (row < 0 || row >= p.seqlen_q)
      return {Code::invalid,
              cat("rows[", r, "] is ", row, "; accepted: 0 to ", p.seqlen_q - 1, ", the rows of q")};
  }
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
  ForwardParams p;
  if (Status s = problem_from_tensors(forward, t, &problem); !s.ok()) return s;
  if (Status s = bind_scores(problem, t, &p); !s.ok()) return s;
  if (Status s = check_values(problem, p, context.options.check_data != 0); !s.ok()) return s;
  if (Status s = check_outputs(p, rows, weights); !s.ok()) return s;
  const int64_t count = rows.shape[0];
  const int workers = context.executor->workers();
  auto body = [&](int64_t index, int) {
    const int64_t r = index % count, h = index / count % p.heads_q, b = index / count / p.heads_q;
    const int64_t row = static_cast<const int32_t*>(rows.data)[r * stride_of(rows, 0)];
    // A shorter sequence of a packed batch may lack the row: it sees nothing.
    const bool owned = row < sequence_of(p, b).rows_q;
    const std::vector<double> exact = owned ? oracle_weights(p, b, h, row) : std::vector<double>();
    float* out = static_cast<float*>(weights.data) + b * stride_of(weights, 0) + h * stride_of(weights, 1) +
                 r * stride_of(weights, 2);
    for (int64_t j = 0; j < p.seqlen_kv; ++j) {
      const auto at = static_cast<size_t>(j);
      out[j * stride_of(weights, 3)] = at < exact.size() ? static_cast<float>(exact[at]) : 0.0f;
    }
  };
  context.executor->run(p.batch * p.heads_q * count, workers, body);
  return {};
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
