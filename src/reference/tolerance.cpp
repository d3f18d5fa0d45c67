#include "reference/tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "reference/run_formula.h"

namespace tilewise {
namespace {

// What is common to the outputs that are [rows, heads, dim].
ExpectedOutput rows_output(const char* name, DType dtype, const std::vector<RowId>& rows, int64_t heads,
                           int64_t dim) {
  ExpectedOutput output;
  output.name = name;
  output.dtype = dtype;
  output.rows = rows;
  output.extent = {static_cast<int64_t>(rows.size()), heads, dim};
  for (const RowId& id : rows) {
    for (int64_t h = 0; h < heads; ++h) {
      output.group.insert(output.group.end(), static_cast<size_t>(dim),
                          static_cast<int32_t>(id.sequence * heads + h));
    }
  }
  return output;
}

template <typename Tensor>
void address_rows(const Tensor& tensor, const ForwardParams& p, bool keys, ExpectedOutput* output) {
  output->address.reserve(output->group.size());
  for (const RowId& id : output->rows) {
    const SequenceShape shape = shape_of_sequence(p, id.sequence);
    const int64_t begin = keys ? shape.kv_begin : shape.q_begin;
    for (int64_t h = 0; h < output->extent[1]; ++h) {
      const int64_t from = offset_of(tensor, id.sequence, begin, id.row, h);
      for (int64_t d = 0; d < output->extent[2]; ++d) output->address.push_back(from + d);
    }
  }
}

void fill(const std::vector<double>& ref, const std::vector<float>& naive,
          const std::vector<Magnitude>& magnitude, ExpectedOutput* output) {
  output->ref = ref;
  output->naive.assign(naive.begin(), naive.end());
  output->terms.resize(magnitude.size());
  std::transform(magnitude.begin(), magnitude.end(), output->terms.begin(),
                 [](Magnitude m) { return m.terms; });
}

// Adds what the output holds already, in each arithmetic.
void add_initial(const void* data, ExpectedOutput* output) {
  for (size_t e = 0; e < output->ref.size(); ++e) {
    const double initial = read_element(data, output->dtype, output->address[e]);
    output->ref[e] += initial;
    output->naive[e] = static_cast<float>(output->naive[e]) + static_cast<float>(initial);
    output->terms[e] += std::fabs(initial);
  }
}

// `other`: the naive run's values by the other order of rounding, where there is one.
void measure_naive(ExpectedOutput* output, const std::vector<float>& other = {}) {
  int32_t groups = 0;
  for (int32_t g : output->group) groups = std::max(groups, g + 1);
  output->naive_error.assign(static_cast<size_t>(groups), 0.0);
  for (size_t e = 0; e < output->ref.size(); ++e) {
    output->naive[e] = rounded_to(output->dtype, output->naive[e]);
    double& worst = output->naive_error[static_cast<size_t>(output->group[e])];
    const auto count = [&](double value) {
      const double error = std::fabs(value - output->ref[e]);
      if (std::isfinite(error)) worst = std::max(worst, error);
    };
    count(output->naive[e]);
    if (!other.empty()) count(rounded_to(output->dtype, other[e]));
  }
}

constexpr double kFlushed = 0x1p-112;

enum class Kind { finite, nan, plus_infinity, minus_infinity };

Kind kind_of(double x) {
  if (std::isnan(x)) return Kind::nan;
  if (std::isinf(x)) return x > 0 ? Kind::plus_infinity : Kind::minus_infinity;
  return Kind::finite;
}

}  // namespace

const ExpectedOutput* Expectation::find(const std::string& name) const {
  for (const ExpectedOutput& output : outputs) {
    if (output.name == name) return &output;
  }
  return nullptr;
}

std::string ExpectedOutput::coordinate(size_t element) const {
  std::vector<int64_t> index(extent.size());
  auto rest = static_cast<int64_t>(element);
  for (size_t n = extent.size(); n-- > 0;) {
    index[n] = rest % extent[n];
    rest /= extent[n];
  }
  char text[128];
  if (!rows.empty()) {
    const RowId id = rows[static_cast<size_t>(index[0])];
    std::snprintf(text, sizeof text, "batch %lld, row %lld, head %lld, dim %lld",
                  static_cast<long long>(id.sequence), static_cast<long long>(id.row),
                  static_cast<long long>(index[1]), static_cast<long long>(index[2]));
  } else if (index.size() == 4) {
    std::snprintf(text, sizeof text, "batch %lld, head %lld, row %lld, key %lld",
                  static_cast<long long>(index[0]), static_cast<long long>(index[1]),
                  static_cast<long long>(index[2]), static_cast<long long>(index[3]));
  } else {
    std::snprintf(text, sizeof text, "head %lld", static_cast<long long>(index[0]));
  }
  return text;
}

Expectation expect_forward(const ForwardParams& p, const RowSelection& selection) {
  const auto ref = run_forward<double>(p, selection);
  const auto naive = run_forward<float>(p, selection);
  const auto magnitude = run_forward<Magnitude>(p, selection);

  Expectation expectation;
  ExpectedOutput o = rows_output("o", p.o.dtype, ref.rows, p.heads_q, p.head_dim_v);
  address_rows(p.o, p, false, &o);
  fill(ref.o, naive.o, magnitude.o, &o);
  measure_naive(&o, naive.o_divided_last);
  expectation.outputs.push_back(std::move(o));
  ExpectedOutput lse = rows_output("lse", DType::f32, ref.rows, p.heads_q, 1);
  address_rows(p.lse, p, false, &lse);
  fill(ref.lse, naive.lse, magnitude.lse, &lse);
  measure_naive(&lse);
  expectation.outputs.push_back(std::move(lse));
  return expectation;
}

Expectation expect_backward(const BackwardParams& p, const RowSelection& query_rows,
                            const RowSelection& key_rows) {
  const auto ref = run_backward<double>(p, query_rows, key_rows);
  const auto naive = run_backward<float>(p, query_rows, key_rows);
  const auto magnitude = run_backward<Magnitude>(p, query_rows, key_rows);

  Expectation expectation;
  const auto add_rows = [&](const char* name, const RowTensor& tensor, bool keys, int64_t heads, int64_t dim,
                            const std::vector<double>& r, const std::vector<float>& n,
                            const std::vector<Magnitude>& m) {
    if (tensor.data == nullptr) return;
    ExpectedOutput output = rows_output(name, tensor.dtype, keys ? ref.key_rows : ref.query_rows, heads, dim);
    address_rows(tensor, p, keys, &output);
    fill(r, n, m, &output);
    if (p.accumulate) add_initial(tensor.data, &output);
    measure_naive(&output);
    expectation.outputs.push_back(std::move(output));
  };
  add_rows("dq", p.dq, false, p.heads_q, p.head_dim, ref.dq, naive.dq, magnitude.dq);
  add_rows("dk", p.dk, true, p.heads_kv, p.head_dim, ref.dk, naive.dk, magnitude.dk);
  add_rows("dv", p.dv, true, p.heads_kv, p.head_dim_v, ref.dv, naive.dv, magnitude.dv);

  const bool whole = !query_rows && !key_rows;
  if (p.dbias.data != nullptr && whole) {
    ExpectedOutput dbias;
    dbias.name = "dbias";
    dbias.dtype = p.dbias.dtype;
    dbias.extent.assign(p.bias_shape, p.bias_shape + 4);
    for (int64_t b = 0; b < p.bias_shape[0]; ++b) {
      for (int64_t h = 0; h < p.bias_shape[1]; ++h) {
        for (int64_t i = 0; i < p.bias_shape[2]; ++i) {
          for (int64_t j = 0; j < p.bias_shape[3]; ++j) {
            dbias.address.push_back(offset_of(p.dbias, b, h, i, j));
            dbias.group.push_back(static_cast<int32_t>(b * p.bias_shape[1] + h));
          }
        }
      }
    }
    fill(ref.dbias, naive.dbias, magnitude.dbias, &dbias);
    measure_naive(&dbias);
    expectation.outputs.push_back(std::move(dbias));
  }
  if (p.dsinks != nullptr && whole) {
    ExpectedOutput dsinks;
    dsinks.name = "dsinks";
    dsinks.extent = {p.heads_q};
    for (int64_t h = 0; h < p.heads_q; ++h) {
      dsinks.address.push_back(h * p.dsinks_stride);
      dsinks.group.push_back(static_cast<int32_t>(h));
    }
    fill(ref.dsinks, naive.dsinks, magnitude.dsinks, &dsinks);
    measure_naive(&dsinks);
    expectation.outputs.push_back(std::move(dsinks));
  }
  return expectation;
}

Comparison compare(const ExpectedOutput& expected, const void* data, double units) {
  Comparison result;
  const double unit = rounding_unit(expected.dtype);
  const double tiny = smallest_normal(expected.dtype);
  for (size_t e = 0; e < expected.ref.size(); ++e) {
    const double ref = expected.ref[e];
    const double got = read_element(data, expected.dtype, expected.address[e]);
    const double allowed = 2.0 * expected.naive_error[static_cast<size_t>(expected.group[e])] +
                           unit * std::max(std::fabs(ref), tiny) + units * 0x1p-24 * expected.terms[e] +
                           kFlushed;
    double share = 0.0;
    const Kind kind = kind_of(rounded_to(expected.dtype, ref));
    if (kind_of(got) != kind) {
      share = std::numeric_limits<double>::infinity();
    } else if (kind == Kind::finite) {
      share = std::fabs(got - ref) / allowed;
    }
    if (e == 0 || share > result.share) {
      result.share = share;
      result.worst = e;
      result.got = got;
      result.expected = ref;
      result.allowed = allowed;
    }
  }
  if (expected.ref.empty()) {
    result.text = expected.name + " has no elements";
    return result;
  }
  char numbers[200];
  std::snprintf(numbers, sizeof numbers, ": got %.9g, expected %.9g, error %.3g of %.3g allowed (share %.3f)",
                result.got, result.expected, std::fabs(result.got - result.expected), result.allowed,
                result.share);
  result.text = expected.name + " at " + expected.coordinate(result.worst) + numbers;
  return result;
}

}  // namespace tilewise
