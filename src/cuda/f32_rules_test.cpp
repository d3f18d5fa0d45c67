#include "cuda/f32_rules.h"

#include <gtest/gtest.h>

#include "cuda/f32_sizes.h"
#include "cuda/made_up_device.h"
#include "plan/planner.h"

namespace tilewise {
namespace {

Problem problem() {
  Problem p;
  p.batch = 1;
  p.heads_q = p.heads_kv = 16;
  p.head_dim = p.head_dim_v = 64;
  p.seqlen_q = p.seqlen_kv = 1024;
  p.alignment = 64;
  return p;
}

// Stores of 16 bytes begin where each tensor's parts do, whatever its rows.
TEST(F32Rules, PartsLieInScratch) {
  for (int64_t rows : {0, 1, 37, 4096}) EXPECT_EQ(cuda::f32_part_bytes(64, rows) % 256, 0) << rows;
  const auto made = plan(problem(), made_up_device());
  ASSERT_TRUE(made.ok());
  EXPECT_STREQ(made->kernel, "forward_sm80_f32_d64_64x64_simple");
  EXPECT_EQ(made->workspace_bytes, TILEWISE_CONTROL_BYTES + 3 * cuda::f32_part_bytes(64, 16 * 1024));
}

// Written once and read once, by a second launch.
TEST(F32Rules, PartsAreCounted) {
  const Kernel& row = cuda_row("forward_sm80_f32_d64_64x64_simple");
  const Estimate e = row.estimate(row, problem(), made_up_device(), {});
  const Estimate fused = cuda::estimate(row, problem(), made_up_device(), {});
  const auto parts = static_cast<double>(row.scratch_bytes(row, problem(), {}));
  EXPECT_DOUBLE_EQ(e.bytes, fused.bytes + 2.0 * parts);
  EXPECT_NEAR(e.seconds - fused.seconds, 2e-6 + 2.0 * parts / 4.8e12, 1e-9);
}

}  // namespace
}  // namespace tilewise
