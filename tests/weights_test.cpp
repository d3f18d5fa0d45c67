// attention_weights and merge: the calls beside forward and backward, against the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/text.h"
#include "reference/oracle.h"
#include "tests/support/kernel_run.h"

namespace tilewise {
namespace {

using namespace testing_support;

TEST(AttentionWeights, AreTheOraclesOnEveryDenseCase) {
  int checked = 0;
  for (const Case& c : file_cases()) {
    const Problem& sizes = c.problem;
    if (sizes.packed_q + sizes.packed_kv != 0 || sizes.batch * sizes.seqlen_q * sizes.seqlen_kv == 0)
      continue;
    if (sizes.batch > 100 || c.inputs.starts_with("nan_key")) continue;
    SCOPED_TRACE(c.text);
    CaseData data(c, DType::f32, 5);
    const ForwardParams p = data.params(Direction::forward);
    std::vector<int32_t> rows{0, static_cast<int32_t>(sizes.seqlen_q / 2),
                              static_cast<int32_t>(sizes.seqlen_q - 1)};
    std::vector<float> weights(static_cast<size_t>(p.batch * p.heads_q * 3 * p.seqlen_kv),
                               std::numeric_limits<float>::quiet_NaN());
    Problem options = c.problem;
    const Status status = attention_weights(shared_context().context(), options,
                                            data.tensors(Direction::forward), Tensor(rows.data(), {3}),
                                            Tensor(weights.data(), {p.batch, p.heads_q, 3, p.seqlen_kv}));
    ASSERT_TRUE(status.ok()) << status.message();
    size_t at = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t h = 0; h < p.heads_q; ++h) {
        for (const int32_t i : rows) {
          const std::vector<double> right = oracle_weights(p, b, h, i);
          for (size_t j = 0; j < right.size(); ++j, ++at) {
            const auto got = static_cast<double>(weights[at]);
            if (std::isnan(right[j]) && std::isnan(got)) continue;
            ASSERT_NEAR(got, right[j], 1e-6)
                << "batch " << b << " head " << h << " row " << i << " key " << j;
          }
        }
      }
    }
    ++checked;
  }
  EXPECT_GT(checked, 150);
}

// Forward over the first keys and over the rest, merged, is the forward over all.
TEST(Merge, OfTwoPartsIsTheWhole) {
  for (const int64_t first : {0, 1, 37, 90}) {
    SCOPED_TRACE(cat("first part has ", first, " keys"));
    const std::string sizes = "name=parts batch=2 heads_q=4 heads_kv=2 seqlen_q=20 seqlen_kv=90 head_dim=16 ";
    const auto whole_case = parse_case(sizes);
    const auto left_case = parse_case(cat(sizes, "kv_lengths=", first, ",", first));
    const auto right_case = parse_case(cat(sizes, "kv_starts=", first, ",", first));
    CaseData whole(*whole_case, DType::f32, 5), left(*left_case, DType::f32, 5),
        right(*right_case, DType::f32, 5);
    const Expectation answer = expect_forward(whole.params(Direction::forward));
    left.set_forward_result(expect_forward(left.params(Direction::forward)));
    right.set_forward_result(expect_forward(right.params(Direction::forward)));
    const Status status =
        merge(shared_context().context(), left.o.view(), left.lse.view(), right.o.view(), right.lse.view());
    ASSERT_TRUE(status.ok()) << status.message();
    for (const char* name : {"o", "lse"}) {
      const Comparison one = compare(*answer.find(name), name[0] == 'o' ? left.o.data() : left.lse.data());
      EXPECT_TRUE(one.passed()) << one.text;
    }
  }
}

TEST(Merge, APartWithoutKeysChangesNoBit) {
  const auto c = parse_case("name=identity heads_q=2 seqlen_q=9 seqlen_kv=30 head_dim=16");
  CaseData data(*c, DType::f32, 5), part(*c, DType::f32, 6);
  const Expectation answer = expect_forward(data.params(Direction::forward));
  data.set_forward_result(answer);
  part.o.fill(Poison::nan);
  for (int64_t n = 0; n < 18; ++n) {
    static_cast<float*>(part.lse.data())[n] = -std::numeric_limits<float>::infinity();
  }
  for (int64_t n = 0; n < 9 * 2 * 16; ++n) static_cast<float*>(part.o.data())[n] = 0.0f;
  const auto bits = output_bits(data, Direction::forward, answer);
  ASSERT_TRUE(
      merge(shared_context().context(), data.o.view(), data.lse.view(), part.o.view(), part.lse.view()).ok());
  EXPECT_EQ(first_difference(data, Direction::forward, answer, bits), "");
}

}  // namespace
}  // namespace tilewise
