#include "cuda/short_rules.h"

#include <gtest/gtest.h>

#include "core/cost.h"
#include "cuda/made_up_device.h"
#include "plan/planner.h"

namespace tilewise {
namespace {

Problem sequences(int64_t batch, int64_t seqlen) {
  Problem p;
  p.batch = batch;
  p.heads_q = p.heads_kv = 16;
  p.head_dim = p.head_dim_v = 64;
  p.seqlen_q = p.seqlen_kv = seqlen;
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = TILEWISE_BF16;
  p.alignment = 16;
  return p;
}

const Kernel& short_row() { return cuda_row("forward_sm80_bf16_d64_16x64_short_simple"); }

TEST(ShortRules, RefusalsSayWhatWouldDo) {
  const auto of = [](auto change) {
    Problem p = sequences(4, 50);
    change(p);
    return cuda::short_refuses(short_row(), p, made_up_device());
  };
  EXPECT_EQ(of([](Problem&) {}), "");
  EXPECT_EQ(of([](Problem& p) { p.seqlen_kv = 65; }), "takes sequences of up to 64 keys; given 65");
  EXPECT_EQ(of([](Problem& p) { p.seqlen_q = 4000; }), "");
  EXPECT_EQ(of([](Problem& p) { p.head_dim_v = 20; }),
            "takes head_dim and head_dim_v that are multiples of 8; given 64 and 20");
  EXPECT_NE(of([](Problem& p) { p.batch_invariant = 1; }).find("batch_invariant"), std::string::npos);
  EXPECT_NE(of([](Problem& p) { p.alignment = 4; }).find("multiples of 16"), std::string::npos);
}

TEST(ShortCost, ShortSequencesTakeTheRowAndLongOnesDoNot) {
  for (int64_t batch : {1, 64, 512})
    for (int64_t seqlen : {16, 32}) {
      const auto made = plan(sequences(batch, seqlen), made_up_device());
      ASSERT_TRUE(made.ok()) << made.status().message();
      EXPECT_STREQ(made->kernel, short_row().name) << batch << " x " << seqlen;
    }
  for (int64_t batch : {64, 512})
    EXPECT_NE(std::string(plan(sequences(batch, 64), made_up_device())->kernel).find("_64x64_b"),
              std::string::npos);
  const auto longer = plan(sequences(64, 512), made_up_device());
  ASSERT_TRUE(longer.ok());
  EXPECT_EQ(std::string(longer->kernel).find("short"), std::string::npos) << longer->kernel;
  // Where there is no wgmma.
  EXPECT_STREQ(plan(sequences(512, 64), made_up_device(80))->kernel, short_row().name);
}

// Reading and writing once is what they cost.
TEST(ShortCost, FollowsTheBytes) {
  const Problem p = sequences(512, 32);
  const Estimate e = cuda::short_estimate(short_row(), p, made_up_device(), {});
  EXPECT_DOUBLE_EQ(e.bytes, ideal_bytes(p));
  EXPECT_GT(e.seconds, e.bytes / 4.8e12);
  EXPECT_LT(e.seconds, 1.7 * e.bytes / 4.8e12);
}

}  // namespace
}  // namespace tilewise
