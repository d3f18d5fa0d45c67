#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "api/made_up_call.h"
#include "core/half.h"

namespace tilewise {
namespace {

using made_up::Call;

Tensor slice_keys(const tilewise_tensor& t, int64_t first, int64_t count) {
  Tensor part = t;
  part.data = static_cast<float*>(t.data) + first * t.stride[1];
  part.shape[1] = count;
  return part;
}

// Attention over all keys equals the merge of attention over parts of them, in any split.
TEST(Merge, PartsGiveTheWhole) {
  const Context context = made_up::reference_context();
  for (int64_t split : {0, 1, 4, 5}) {
    Call whole, first, second;
    ASSERT_TRUE(attention(context, whole.options, whole.t).ok());
    first.t.k = slice_keys(whole.t.k, 0, split), first.t.v = slice_keys(whole.t.v, 0, split);
    second.t.k = slice_keys(whole.t.k, split, 5 - split),
    second.t.v = slice_keys(whole.t.v, split, 5 - split);
    first.t.q = second.t.q = whole.t.q;
    ASSERT_TRUE(attention(context, first.options, first.t).ok());
    ASSERT_TRUE(attention(context, second.options, second.t).ok());
    const Status s = merge(context, first.t.o, first.t.lse, second.t.o, second.t.lse);
    ASSERT_TRUE(s.ok()) << s.message();
    for (int i = 0; i < 2 * 3 * 4 * 6; ++i)
      EXPECT_NEAR(static_cast<float*>(first.t.o.data)[i], static_cast<float*>(whole.t.o.data)[i], 2e-6f);
    for (int i = 0; i < 24; ++i)
      EXPECT_NEAR(static_cast<float*>(first.t.lse.data)[i], static_cast<float*>(whole.t.lse.data)[i], 2e-6f);
  }
}

TEST(Merge, APartWithoutKeysChangesNoBit) {
  const Context context = made_up::reference_context();
  std::vector<float> o{1.5f, -0.0f, 3e-40f, 7}, part(4, NAN), lse{0.25f, -3}, none(2, -INFINITY);
  const std::vector<float> before = o;
  const Tensor to(o.data(), {1, 2, 1, 2}), tlse(lse.data(), {1, 1, 2}), tp(part.data(), {1, 2, 1, 2}),
      tn(none.data(), {1, 1, 2});
  ASSERT_TRUE(merge(context, to, tlse, tp, tn).ok());
  EXPECT_EQ(std::memcmp(o.data(), before.data(), sizeof(float) * 4), 0);
  // The other way round: what was empty becomes the part, and NaN in it does not matter.
  ASSERT_TRUE(merge(context, tp, tn, to, tlse).ok());
  EXPECT_EQ(std::memcmp(part.data(), before.data(), sizeof(float) * 4), 0);
  EXPECT_EQ(none, lse);
}

TEST(Merge, SixteenBitPackedAndStrided) {
  const Context context = made_up::reference_context();
  std::vector<uint16_t> o(3 * 2 * 4), expected;
  std::vector<float> part(3 * 2 * 2), lse(2 * 3, 1.0f), lse_part(2 * 3, 1.0f);
  for (size_t i = 0; i < o.size(); ++i) o[i] = bf16_of_float(static_cast<float>(i));
  for (size_t i = 0; i < part.size(); ++i) part[i] = 100;
  Tensor to(o.data(), DType::bf16, {3, 2, 2});
  to = to.with_strides({8, 4, 1});  // two unused elements a head
  ASSERT_TRUE(merge(context, to, Tensor(lse.data(), {2, 3}), Tensor(part.data(), {3, 2, 2}),
                    Tensor(lse_part.data(), {2, 3}))
                  .ok());
  for (size_t i = 0; i < o.size(); ++i) {
    const float was = static_cast<float>(i);
    EXPECT_EQ(float_of_bf16(o[i]), i % 4 < 2 ? float_of_bf16(bf16_of_float((was + 100) / 2)) : was);
  }
  EXPECT_FLOAT_EQ(lse[0], 1 + std::log(2.0f));
}

TEST(Merge, Refusals) {
  const Context context = made_up::reference_context();
  Call a, b;
  const auto says = [](const Status& s, const char* part) {
    return s.message().find(part) != std::string::npos;
  };
  EXPECT_TRUE(says(merge(context, a.t.o, a.t.lse, a.t.o, b.t.lse), "o overlaps o_part"));
  EXPECT_TRUE(says(merge(context, a.t.o, a.t.lse, b.t.q, b.t.lse),
                   "o_part has shape [2, 3, 4, 8]; accepted: [2, 3, 4, 6]"));
  EXPECT_TRUE(says(merge(context, a.t.o, a.t.lse, b.t.o, Tensor()), "lse_part is missing"));
  EXPECT_TRUE(merge(context, Tensor(static_cast<float*>(nullptr), {0, 3, 4, 6}),
                    Tensor(static_cast<float*>(nullptr), {0, 4, 3}),
                    Tensor(static_cast<float*>(nullptr), {0, 3, 4, 6}),
                    Tensor(static_cast<float*>(nullptr), {0, 4, 3}))
                  .ok());
}

}  // namespace
}  // namespace tilewise
