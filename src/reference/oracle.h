// The oracle: exact attention in double precision, the definition that every kernel is held against.
//
// Results are dense: [rows, heads, dim], where `rows` are the rows asked for, by default every row that the
// call owns. Asking for a few rows (of a long problem) costs time and memory for those rows only.
#ifndef TILEWISE_REFERENCE_ORACLE_H_
#define TILEWISE_REFERENCE_ORACLE_H_

#include <optional>
#include <vector>

#include "core/params.h"
#include "reference/visible.h"

namespace tilewise {

template <typename Real>
struct ForwardResult {
  std::vector<RowId> rows;
  std::vector<Real> o;               // [rows, heads_q, head_dim_v]
  std::vector<Real> o_divided_last;  // naive run: weights rounded before, o divided after their sum
  std::vector<Real> lse;             // [rows, heads_q]
};

template <typename Real>
struct BackwardResult {
  std::vector<RowId> query_rows, key_rows;
  std::vector<Real> dq;      // [query_rows, heads_q, head_dim]
  std::vector<Real> dk;      // [key_rows, heads_kv, head_dim]
  std::vector<Real> dv;      // [key_rows, heads_kv, head_dim_v]
  std::vector<Real> dbias;   // bias_shape; empty without bias or for a selection of rows
  std::vector<Real> dsinks;  // [heads_q]; likewise
};

using OracleForward = ForwardResult<double>;
using OracleBackward = BackwardResult<double>;

using RowSelection = std::optional<std::vector<RowId>>;  // nullopt: every row

OracleForward run_oracle_forward(const ForwardParams& params, const RowSelection& rows = {});

// The gradient of sum(dout * o) + sum(dlse * lse) where lse and o (or delta) are the tensors given, so a part
// of the keys is served too. Ignores `accumulate`: the gradient alone.
OracleBackward run_oracle_backward(const BackwardParams& params, const RowSelection& query_rows = {},
                                   const RowSelection& key_rows = {});

// P of one query before dropout, [key rows of the sequence], 0 where it does not see.
std::vector<double> oracle_weights(const ForwardParams& params, int64_t sequence, int64_t head, int64_t row);

// Scores of one query after each step, as ONNX numbers them (qk_matmul_output_mode).
enum class ScoreStage { scaled = 0, softcapped = 1, biased_and_masked = 2, softmax = 3 };
std::vector<double> oracle_scores(const ForwardParams& params, int64_t sequence, int64_t head, int64_t row,
                                  ScoreStage stage);

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_ORACLE_H_
