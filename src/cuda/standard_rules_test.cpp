#include "cuda/standard_rules.h"

#include <gtest/gtest.h>

#include "core/cost.h"
#include "cuda/made_up_device.h"
#include "cuda/standard_sizes.h"
#include "plan/planner.h"

namespace tilewise {
namespace {

Problem problem(int64_t seqlen, int64_t head_dim = 64) {
  Problem p;
  p.batch = std::max<int64_t>(1, 16384 / seqlen);
  p.heads_q = p.heads_kv = 2048 / head_dim;
  p.head_dim = p.head_dim_v = head_dim;
  p.seqlen_q = p.seqlen_kv = seqlen;
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = TILEWISE_BF16;
  p.alignment = 16;
  return p;
}

const Kernel& standard(int head_dim = 64) {
  return cuda_row("forward_sm80_bf16_d" + std::to_string(head_dim) + "_128x128_standard_simple");
}

TEST(StandardRules, ScratchHoldsAllScoresUpToTheBound) {
  const int64_t pairs = int64_t{16384} * 32 * 512;
  EXPECT_GE(cuda::standard_scratch(standard(), problem(512), {}), pairs * 6);
  for (int64_t seqlen : {0, 1, 129, 4096, 16384, 131072})
    EXPECT_LE(cuda::standard_scratch(standard(), problem(std::max<int64_t>(1, seqlen)), {}),
              cuda::kStandardMost)
        << seqlen;
  Problem empty = problem(512);
  empty.seqlen_kv = 0;
  EXPECT_LT(cuda::standard_scratch(standard(), empty, {}), int64_t{1} << 23);
  empty.seqlen_q = 0;
  EXPECT_EQ(cuda::standard_scratch(standard(), empty, {}), 0);
}

TEST(StandardRules, RoundsCoverEveryUnit) {
  const cuda::StandardSizes few(1, 1, 100, 300), many(1, 32, 16384, 16384);
  EXPECT_EQ(few.units, 1);
  EXPECT_EQ(few.rounds(), 1);
  EXPECT_EQ(few.pitch, 384);
  EXPECT_EQ(many.units, 128 * 32);
  EXPECT_GE(many.rounds() * many.round, many.units);
  EXPECT_LT((many.rounds() - 1) * many.round, many.units);
}

TEST(StandardRules, PackedProblemsAreRefused) {
  Problem p = problem(512);
  EXPECT_EQ(cuda::standard_refuses(standard(), p, made_up_device()), "");
  p.packed_q = 1;
  p.total_q = 1000;
  EXPECT_NE(cuda::standard_refuses(standard(), p, made_up_device()).find("packed"), std::string::npos);
}

// The numbers by which the planner prefers a fused row: the scores' way to memory and back.
TEST(StandardRules, ScoresAreCountedEachWay) {
  for (int head_dim : {64, 128}) {
    const Problem p = problem(4096, head_dim);
    const Estimate e = standard(head_dim).estimate(standard(head_dim), p, made_up_device(), {});
    EXPECT_NEAR(e.bytes, ideal_bytes(p) + 16.0 * visible_pairs(p), 1e-6 * e.bytes);
    const auto made = plan(p, made_up_device());
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(std::string(made->kernel).find("standard"), std::string::npos);
    EXPECT_GT(e.seconds, 3.0 * made->predicted_ms * 1e-3);
  }
}

}  // namespace
}  // namespace tilewise
