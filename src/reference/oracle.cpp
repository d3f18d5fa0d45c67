#include "reference/oracle.h"

#include <limits>

#include "reference/run_formula.h"

namespace tilewise {

OracleForward run_oracle_forward(const ForwardParams& params, const RowSelection& rows) {
  return run_forward<double>(params, rows);
}

OracleBackward run_oracle_backward(const BackwardParams& params, const RowSelection& query_rows,
                                   const RowSelection& key_rows) {
  return run_backward<double>(params, query_rows, key_rows);
}

std::vector<double> oracle_weights(const ForwardParams& params, int64_t sequence, int64_t head, int64_t row) {
  return oracle_scores(params, sequence, head, row, ScoreStage::softmax);
}

std::vector<double> oracle_scores(const ForwardParams& params, int64_t sequence, int64_t head, int64_t row,
                                  ScoreStage stage) {
  const HeadFormula<double> formula(params, sequence, head);
  std::vector<double> scores(static_cast<size_t>(formula.shape.kv_rows), 0.0);
  if (stage == ScoreStage::softmax) {
    const auto result = formula.forward_row(row);
    for (size_t n = 0; n < result.keys.size(); ++n) {
      scores[static_cast<size_t>(result.keys[n])] = result.weights[n];
    }
    return scores;
  }
  const std::vector<double> q = formula.query_row(params.q, row, params.head_dim);
  for (int64_t j = 0; j < formula.shape.kv_rows; ++j) {
    const auto s = formula.score_of(q, row, j);
    double& out = scores[static_cast<size_t>(j)];
    if (stage == ScoreStage::scaled) out = s.scaled;
    if (stage == ScoreStage::softcapped) out = s.capped;
    if (stage == ScoreStage::biased_and_masked) {
      const bool seen = sees(params, formula.shape, sequence, head, row, j);
      out = seen ? s.full : -std::numeric_limits<double>::infinity();
    }
  }
  return scores;
}

}  // namespace tilewise
