#include "tune/problem_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tilewise::tune {
namespace {

TEST(ProblemData, NumbersAreStandardNormalAndDependOnTheSeedAlone) {
  constexpr int64_t kCount = 100000;
  std::vector<float> a(kCount), b(kCount), c(kCount);
  fill_normal(a.data(), DType::f32, kCount, 1);
  fill_normal(b.data(), DType::f32, kCount, 1);
  fill_normal(c.data(), DType::f32, kCount, 2);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  double sum = 0, squares = 0;
  for (float x : a) sum += x, squares += static_cast<double>(x) * x;
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
}

TEST(ProblemData, SixteenBitNumbersAreTheSameRounded) {
  std::vector<float> wide(1000);
  std::vector<uint16_t> half(1000), brain(1000);
  fill_normal(wide.data(), DType::f32, 1000, 3);
  fill_normal(half.data(), DType::f16, 1000, 3);
  fill_normal(brain.data(), DType::bf16, 1000, 3);
  const Tensor as_half(half.data(), DType::f16, {1000}), as_brain(brain.data(), DType::bf16, {1000});
  for (int64_t i = 0; i < 1000; ++i) {
    const double x = wide[static_cast<size_t>(i)];
    ASSERT_NEAR(value_at(as_half, i), x, 1e-3 + std::fabs(x) / 1024);
    ASSERT_NEAR(value_at(as_brain, i), x, 1e-3 + std::fabs(x) / 128);
  }
}

TEST(ProblemData, MakesEveryTensorOfADirectionAlignedAndOfTheRightSize) {
  ProblemSize size;
  size.direction = Direction::backward;
  size.batch = 2, size.heads_q = 4, size.heads_kv = 2, size.head_dim = 24, size.head_dim_v = 40;
  size.seqlen_q = 5, size.seqlen_kv = 9;
  const Problem p = make_problem(size);
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  const auto data = ProblemData::make(*context, p, 1);
  ASSERT_TRUE(data.ok()) << data.status().message();
  const Tensors& t = data->tensors();
  for (const tilewise_tensor* tensor : {&t.q, &t.k, &t.v, &t.o, &t.lse, &t.dout, &t.dq, &t.dk, &t.dv}) {
    ASSERT_NE(tensor->data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->data) % 64, 0u);
  }
  EXPECT_EQ(t.k.shape[1], 9);
  EXPECT_EQ(t.k.shape[2], 2);
  EXPECT_EQ(t.dv.shape[3], 40);
  EXPECT_EQ(p.alignment, 32);  // 24 floats are 96 bytes, 40 are 160
  EXPECT_EQ(ProblemData::bytes_of(p), 2 * 4 * (2 * 5 * 4 * 64 + 2 * 9 * 2 * 64) + 4 * 2 * 4 * 5);
}

TEST(PlannedCall, RunsBothDirections) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  for (Direction direction : {Direction::forward, Direction::backward}) {
    ProblemSize size;
    size.direction = direction;
    size.heads_q = size.heads_kv = 2, size.head_dim = size.head_dim_v = 16,
    size.seqlen_q = size.seqlen_kv = 20;
    const Problem p = make_problem(size);
    auto data = ProblemData::make(*context, p, 1);
    ASSERT_TRUE(data.ok());
    if (direction == Direction::backward) {
      const Status filled = data->fill_forward(*context);
      ASSERT_TRUE(filled.ok()) << filled.message();
    }
    const auto call = PlannedCall::make(*context, p, data->tensors());
    ASSERT_TRUE(call.ok()) << call.status().message();
    for (int i = 0; i < 3; ++i) {
      const Status status = call->run();
      ASSERT_TRUE(status.ok()) << status.message();
    }
    const tilewise_tensor& written = direction == Direction::forward ? data->tensors().o : data->tensors().dq;
    EXPECT_TRUE(std::isfinite(value_at(written, 7)));
  }
}

}  // namespace
}  // namespace tilewise::tune
