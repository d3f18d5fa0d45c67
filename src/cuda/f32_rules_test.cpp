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

Problem backward_problem(int64_t seqlen = 8192, int64_t dim = 64) {
  Problem p = problem();
  p.direction = TILEWISE_BACKWARD;
  p.wants = TILEWISE_WANT_DQ | TILEWISE_WANT_DK | TILEWISE_WANT_DV;
  p.head_dim = p.head_dim_v = dim;
  p.seqlen_q = p.seqlen_kv = seqlen;
  return p;
}

std::string chosen(const Problem& p, uint64_t capability = 90) {
  const auto made = plan(p, made_up_device(capability));
  return made ? made->kernel : made.status().message();
}

TEST(F32Rules, BackwardTakesMatrixUnits) {
  for (const int64_t seqlen : {512, 2048, 8192, 65536}) {
    EXPECT_EQ(chosen(backward_problem(seqlen)), "backward_sm90_f32_d64_64x64_simple") << seqlen;
    EXPECT_EQ(chosen(backward_problem(seqlen, 128)), "backward_sm90_f32_d128_32x64_simple") << seqlen;
  }
  Problem p = backward_problem();
  EXPECT_EQ(chosen(p, 80), "backward_sm80_f32_d64_32x64_general");
  EXPECT_EQ(chosen(p, 75), "backward_simt_any_64x64");
  p.deterministic = p.accumulate = p.causal = 1;
  p.window_left = 100;
  EXPECT_EQ(chosen(p), "backward_sm90_f32_d64_64x64_simple");
  p.softcap = 20.0f;
  EXPECT_EQ(chosen(p), "backward_sm80_f32_d64_32x64_general");
  p = backward_problem(8192, 128);
  p.features |= TILEWISE_HAS_ALIBI;
  EXPECT_EQ(chosen(p), "backward_sm80_f32_d128_16x64_general");
  p = backward_problem();
  p.dropout_p = 0.1f;
  EXPECT_EQ(chosen(p), "backward_sm80_f32_d64_32x64_general");
  EXPECT_EQ(chosen(backward_problem(8192, 192)), "backward_simt_any_64x64");
}

TEST(F32Rules, BackwardRefusalsSayWhy) {
  const Kernel& simple = cuda_row("backward_sm90_f32_d64_64x64_simple");
  const auto of = [&](auto change) {
    Problem p = backward_problem();
    change(p);
    return cuda::refuses(simple, p, made_up_device());
  };
  EXPECT_EQ(of([](Problem&) {}), "");
  EXPECT_EQ(of([](Problem& p) { p.softcap = 9.0f; }),
            "has no code for a softcap or ALiBi; a row with score general has");
  EXPECT_EQ(of([](Problem& p) { p.features |= TILEWISE_HAS_ALIBI; }),
            "has no code for a softcap or ALiBi; a row with score general has");
  EXPECT_EQ(of([](Problem& p) { p.dtype_dq = TILEWISE_BF16; }), "takes dq in f32; given bf16");
  EXPECT_EQ(cuda::refuses(simple, backward_problem(), made_up_device(100)).rfind("needs compute", 0), 0u);
}

// Four bytes a number of q, k, v and dout, eight a row of them, D, and the marks of 64 rows.
TEST(F32Rules, BackwardScratchIsLinearInTheLength) {
  for (const char* name : {"backward_sm90_f32_d128_32x64_simple", "backward_sm80_f32_d128_16x64_general"}) {
    const Kernel& row = cuda_row(name);
    for (const int64_t seqlen : {int64_t{16} << 10, int64_t{64} << 10, int64_t{256} << 10}) {
      const int64_t rows = 16 * seqlen;
      EXPECT_EQ(row.scratch_bytes(row, backward_problem(seqlen, 128), {}),
                rows * (4 * (4 * 128 + 8) + 4) + 2 * rows / 64 * 4)
          << name << seqlen;
    }
  }
}

}  // namespace
}  // namespace tilewise
