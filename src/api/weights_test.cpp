#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "api/made_up_call.h"

namespace tilewise {
namespace {

using made_up::Call;

struct Weights : Call {
  std::vector<float> values = std::vector<float>(2 * 4 * 3 * 5, -1.0f);
  Tensor rows = whole({3}, {0, 1, 2}), weights = Tensor(values.data(), {2, 4, 3, 5});
  Context context = made_up::reference_context();

  float at(int64_t b, int64_t h, int64_t i, int64_t j) {
    return values[static_cast<size_t>(((b * 4 + h) * 3 + i) * 5 + j)];
  }
  // With V = I, the forward pass writes P: two independent codes must agree.
  void expect_equals_forward() {
    std::vector<float> eye(2 * 5 * 2 * 5, 0.0f), out(2 * 3 * 4 * 5);
    for (size_t bh = 0; bh < 2; ++bh) {
      for (size_t j = 0; j < 5; ++j) {
        for (size_t h = 0; h < 2; ++h) eye[((bh * 5 + j) * 2 + h) * 5 + j] = 1;
      }
    }
    t.v = Tensor(eye.data(), {2, 5, 2, 5});
    t.o = Tensor(out.data(), {2, 3, 4, 5});
    ASSERT_TRUE(attention(context, options, t).ok());
    const Status s = attention_weights(context, options, t, rows, weights);
    ASSERT_TRUE(s.ok()) << s.message();
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t i = 0; i < 3; ++i) {
          for (int64_t j = 0; j < 5; ++j)
            EXPECT_NEAR(at(b, h, i, j), out[static_cast<size_t>(((b * 3 + i) * 4 + h) * 5 + j)], 1e-6f)
                << b << " " << h << " " << i << " " << j;
        }
      }
    }
  }
};

TEST(AttentionWeights, EqualForwardWithIdentityValues) {
  {
    Weights w;
    w.expect_equals_forward();
  }
  {
    Weights w;
    w.options.with_causal();
    w.options.softcap = 0.5f;
    w.options.softmax_scale = 2;
    w.expect_equals_forward();
    EXPECT_EQ(w.at(0, 0, 0, 3), 0.0f);
  }
  {
    Weights w;
    w.options.with_window(1, 1);
    w.t.bias = w.real({1, 4, 3, 5}, 3);
    w.t.alibi_slopes = w.real({4}, 1);
    w.t.sinks = w.real({4}, 1);
    w.t.kv_lengths = w.whole({2}, {5, 4});
    w.expect_equals_forward();
  }
  {
    Weights w;
    w.t.segment_ids_q = w.whole({2, 3}, {0, 1, 2, 5, 5, 9});
    w.t.segment_ids_kv = w.whole({2, 5}, {0, 0, 1, 1, 2, 5, 5, 5, 5, 5});
    w.t.kv_ranges = w.whole({2, 3, 2}, {0, 1, 2, 5, 0, 5, 1, 3, 0, 0, 0, 5});
    w.expect_equals_forward();
    for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(w.at(1, 0, 2, j), 0.0f);  // sees no key
  }
}

TEST(AttentionWeights, ChosenRowsWithoutValuesOrOutput) {
  Weights w;
  w.t.v = w.t.o = w.t.lse = Tensor();
  w.rows = w.whole({2}, {2, 0});
  std::vector<float> values(2 * 4 * 2 * 5);
  w.weights = Tensor(values.data(), {2, 4, 2, 5});
  const Status s = attention_weights(w.context, w.options, w.t, w.rows, w.weights);
  ASSERT_TRUE(s.ok()) << s.message();
  float sum = 0;
  for (size_t j = 0; j < 5; ++j) sum += values[j];
  EXPECT_NEAR(sum, 1.0f, 1e-6f);
}

TEST(AttentionWeights, Refusals) {
  Weights w;
  const auto says = [&](const char* part) {
    const Status s = attention_weights(w.context, w.options, w.t, w.rows, w.weights);
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  };
  w.rows = w.whole({3}, {0, 3, 1});
  says("rows[1] is 3; accepted: 0 to 2");
  w.rows = w.whole({2}, {0, 1});
  says("weights has shape [2, 4, 3, 5]; accepted: [2, 4, 2, 5]");
  w.rows = Tensor();
  says("rows is missing");
}

TEST(DropoutKeep, ProbabilityAndEdges) {
  EXPECT_EQ(tilewise_dropout_keep(1, 2, 3, 4, 5, 6, 0.0f), 1);
  EXPECT_EQ(tilewise_dropout_keep(1, 2, 3, 4, 5, 6, 1.0f), 0);
  int kept = 0;
  for (int64_t key = 0; key < 10000; ++key) kept += tilewise_dropout_keep(42, 0, 0, 0, 0, key, 0.25f);
  EXPECT_NEAR(kept, 7500, 200);
}

}  // namespace
}  // namespace tilewise
