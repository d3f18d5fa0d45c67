// The formula over every sequence and head, in any of its arithmetics.
#ifndef TILEWISE_REFERENCE_RUN_FORMULA_H_
#define TILEWISE_REFERENCE_RUN_FORMULA_H_

#include <algorithm>

#include "reference/formula.h"
#include "reference/oracle.h"

namespace tilewise {

// Places in `rows` of each sequence's rows.
inline std::vector<std::vector<size_t>> places_by_sequence(const std::vector<RowId>& rows, int64_t batch) {
  std::vector<std::vector<size_t>> places(static_cast<size_t>(batch));
  for (size_t r = 0; r < rows.size(); ++r) places[static_cast<size_t>(rows[r].sequence)].push_back(r);
  return places;
}

template <typename Real>
ForwardResult<Real> run_forward(const ForwardParams& p, const RowSelection& selection) {
  ForwardResult<Real> result;
  result.rows = selection ? *selection : all_query_rows(p);
  const size_t count = result.rows.size();
  result.o.resize(count * static_cast<size_t>(p.heads_q * p.head_dim_v));
  if constexpr (std::is_same_v<Real, float>) result.o_divided_last.resize(result.o.size());
  result.lse.resize(count * static_cast<size_t>(p.heads_q));
  const auto places = places_by_sequence(result.rows, p.batch);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (places[static_cast<size_t>(b)].empty()) continue;
    for (int64_t h = 0; h < p.heads_q; ++h) {
      const HeadFormula<Real> formula(p, b, h);
      for (const size_t r : places[static_cast<size_t>(b)]) {
        const auto row = formula.forward_row(result.rows[r].row);
        const size_t at = r * static_cast<size_t>(p.heads_q) + static_cast<size_t>(h);
        const int64_t begin = static_cast<int64_t>(at) * p.head_dim_v;
        std::copy(row.o.begin(), row.o.end(), result.o.begin() + begin);
        std::copy(row.o_divided_last.begin(), row.o_divided_last.end(),
                  result.o_divided_last.begin() + begin);
        result.lse[at] = row.lse;
      }
    }
  }
  return result;
}

template <typename Real>
BackwardResult<Real> run_backward(const BackwardParams& p, const RowSelection& query_selection,
                                  const RowSelection& key_selection) {
  BackwardResult<Real> result;
  result.query_rows = query_selection ? *query_selection : all_query_rows(p);
  result.key_rows = key_selection ? *key_selection : all_key_rows(p);
  const bool whole = !query_selection && !key_selection;
  result.dq.resize(result.query_rows.size() * static_cast<size_t>(p.heads_q * p.head_dim));
  result.dk.resize(result.key_rows.size() * static_cast<size_t>(p.heads_kv * p.head_dim));
  result.dv.resize(result.key_rows.size() * static_cast<size_t>(p.heads_kv * p.head_dim_v));
  if (whole && p.bias.data != nullptr) {
    result.dbias.resize(
        static_cast<size_t>(p.bias_shape[0] * p.bias_shape[1] * p.bias_shape[2] * p.bias_shape[3]));
  }
  if (whole && p.sinks != nullptr) result.dsinks.resize(static_cast<size_t>(p.heads_q));

  const auto query_places = places_by_sequence(result.query_rows, p.batch);
  const auto key_places = places_by_sequence(result.key_rows, p.batch);
  for (int64_t b = 0; b < p.batch; ++b) {
    const SequenceShape shape = shape_of_sequence(p, b);
    std::vector<int64_t> dq_slot(static_cast<size_t>(shape.q_rows), -1);
    for (const size_t r : query_places[static_cast<size_t>(b)]) {
      dq_slot[static_cast<size_t>(result.query_rows[r].row)] = static_cast<int64_t>(r);
    }
    std::vector<uint8_t> wants_key(static_cast<size_t>(shape.kv_rows), 0);
    for (const size_t r : key_places[static_cast<size_t>(b)]) {
      wants_key[static_cast<size_t>(result.key_rows[r].row)] = 1;
    }
    for (int64_t kv_head = 0; kv_head < p.heads_kv; ++kv_head) {
      std::vector<Real> dk(static_cast<size_t>(shape.kv_rows * p.head_dim));
      std::vector<Real> dv(static_cast<size_t>(shape.kv_rows * p.head_dim_v));
      for (int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
        const HeadFormula<Real> formula(p, b, h);
        typename HeadFormula<Real>::Gradients sums;
        sums.dk = dk.data();
        sums.dv = dv.data();
        sums.wants_key = wants_key.data();
        sums.dbias = result.dbias.empty() ? nullptr : result.dbias.data();
        sums.dsink = result.dsinks.empty() ? nullptr : &result.dsinks[static_cast<size_t>(h)];
        for (int64_t i = 0; i < shape.q_rows; ++i) {
          const int64_t slot = dq_slot[static_cast<size_t>(i)];
          sums.dq = slot < 0 ? nullptr : result.dq.data() + (slot * p.heads_q + h) * p.head_dim;
          formula.backward_row(p, i, sums);
        }
      }
      for (const size_t r : key_places[static_cast<size_t>(b)]) {
        const RowId id = result.key_rows[r];
        const int64_t at = static_cast<int64_t>(r) * p.heads_kv + kv_head;
        std::copy_n(dk.begin() + id.row * p.head_dim, p.head_dim, result.dk.begin() + at * p.head_dim);
        std::copy_n(dv.begin() + id.row * p.head_dim_v, p.head_dim_v, result.dv.begin() + at * p.head_dim_v);
      }
    }
  }
  return result;
}

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_RUN_FORMULA_H_
