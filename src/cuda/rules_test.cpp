#include "cuda/rules.h"

#include <gtest/gtest.h>

#include "core/cost.h"
#include "cuda/device.h"
#include "cuda/kernels.h"
#include "cuda/made_up_device.h"
#include "cuda/runtime.h"
#include "plan/planner.h"

namespace tilewise {
namespace {

Problem problem(int64_t seqlen = 1024) {
  Problem p;
  p.batch = 1;
  p.heads_q = p.heads_kv = 16;
  p.head_dim = p.head_dim_v = 64;
  p.seqlen_q = p.seqlen_kv = seqlen;
  p.alignment = 64;
  return p;
}

const Kernel& simt(Op op = Op::forward) {
  for (const Kernel& kernel : cuda_kernels())
    if (kernel.target == Target::simt && kernel.op == op) return kernel;
  throw std::runtime_error("no simt row");
}

Problem backward_problem(int64_t seqlen = 1024) {
  Problem p = problem(seqlen);
  p.direction = TILEWISE_BACKWARD;
  p.wants = TILEWISE_WANT_DQ | TILEWISE_WANT_DK | TILEWISE_WANT_DV;
  return p;
}

// The name says what the columns say: operation, architecture, tile.
TEST(CudaTable, NamesAgreeWithTheirColumns) {
  for (const Kernel& kernel : cuda_kernels()) {
    const std::string name = kernel.name;
    const std::string begin = std::string(kernel.op == Op::forward ? "forward_" : "backward_") +
                              name_of(kernel.target) + "_" +
                              (kernel.dtype == DType::none ? "any" : name_of(kernel.dtype)) + "_";
    EXPECT_EQ(name.rfind(begin, 0), 0u) << name << " does not begin with " << begin;
    const std::string tile = "_" + std::to_string(kernel.tile_m) + "x" + std::to_string(kernel.tile_n);
    EXPECT_NE(name.find(tile), std::string::npos) << name;
    EXPECT_TRUE(is_cuda(kernel.target));
    EXPECT_NE(kernel.prepare, nullptr);
  }
}

TEST(CudaRules, RefusalsSayWhatWouldDo) {
  const Kernel& kernel = simt();
  EXPECT_EQ(cuda::refuses(kernel, problem(), made_up_device()), "");
  EXPECT_EQ(cuda::refuses(kernel, problem(), made_up_device(70)),
            "needs compute capability 7.5 or more; this device has 7.0");
  Problem wide = problem();
  wide.head_dim = 577;
  EXPECT_NE(cuda::refuses(kernel, wide, made_up_device()).find("up to 576"), std::string::npos);
}

// A simple tensor core row that is not deterministic; `facts` must live as long.
Kernel simple_backward(cuda::Facts* facts) {
  *facts = cuda::facts_of(simt(Op::backward));
  facts->score = cuda::ScoreKind::simple;
  facts->head_dim = facts->head_dim_v = 64;
  facts->alignment = 16;
  facts->cannot = [](const tilewise_problem& p) { return p.deterministic ? "adds in any order" : nullptr; };
  facts->scratch = [](const tilewise_problem& p) {
    return p.batch * p.heads_q * p.seqlen_q * 4 * (p.head_dim + 1);
  };
  Kernel kernel = simt(Op::backward);
  kernel.target = Target::sm90;
  kernel.dtype = DType::bf16;
  kernel.facts = facts;
  return kernel;
}

TEST(CudaRules, BackwardRowsRefuseWhatTheyCannotDo) {
  cuda::Facts facts;
  const Kernel kernel = simple_backward(&facts);
  const auto of = [&](auto change) {
    Problem p = backward_problem();
    p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = p.dtype_dout = p.dtype_dq = p.dtype_dk = p.dtype_dv =
        TILEWISE_BF16;
    change(p);
    return cuda::refuses(kernel, p, made_up_device());
  };
  EXPECT_EQ(of([](Problem&) {}), "");
  EXPECT_EQ(of([](Problem& p) { p.deterministic = 1; }), "adds in any order");
  EXPECT_EQ(of([](Problem& p) { p.features |= TILEWISE_HAS_BIAS; }),
            "has no code for a bias; a row with score general has");
  EXPECT_EQ(of([](Problem& p) { p.dropout_p = 0.1f; }),
            "has no code for dropout; a row with score general has");
  EXPECT_EQ(of([](Problem& p) { p.dtype_dout = TILEWISE_F32; }), "takes dout in bf16; given f32");
  EXPECT_EQ(of([](Problem& p) { p.dtype_dk = TILEWISE_F16; }), "takes dk in bf16 or f32; given f16");
  EXPECT_EQ(of([](Problem& p) { p.dtype_dq = TILEWISE_F32; }), "");
  EXPECT_EQ(of([](Problem& p) { p.dtype_dk = TILEWISE_F16, p.wants = TILEWISE_WANT_DQ; }), "");
  // o is not read where delta is given.
  EXPECT_EQ(of([](Problem& p) { p.dtype_o = TILEWISE_F16, p.features |= TILEWISE_HAS_DELTA; }), "");
  EXPECT_EQ(cuda::scratch_bytes(kernel, backward_problem(), {}), int64_t{16} * 1024 * 4 * 65);
}

// At 16 heads and 16k tokens: fp32 sums of dQ and D, with or without a fixed order; and in proportion to the
// length.
TEST(CudaRules, BackwardScratchIsLinearInTheLength) {
  constexpr int64_t kMiB = 1 << 20;
  for (const bool deterministic : {false, true}) {
    for (const int64_t seqlen : {int64_t{16} << 10, int64_t{64} << 10, int64_t{256} << 10}) {
      Problem p = backward_problem(seqlen);
      p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = p.dtype_dout = p.dtype_dq = p.dtype_dk = p.dtype_dv =
          TILEWISE_BF16;
      p.batch = 1;
      p.heads_q = p.heads_kv = 16;
      p.head_dim = p.head_dim_v = 128;
      p.deterministic = deterministic;
      const auto made = plan(p, made_up_device());
      ASSERT_TRUE(made.ok()) << made.status().message();
      EXPECT_EQ(std::string(made->kernel), "backward_sm90_bf16_d128_64x128_simple");
      const int64_t times = seqlen >> 14;
      EXPECT_GE(made->workspace_bytes, 129 * times * kMiB);
      EXPECT_LE(made->workspace_bytes, 130 * times * kMiB);
    }
  }
}

// Sums whose order does not depend on the batch are sums in a fixed order: rows that count what a problem
// asks for see both alike.
TEST(CudaRules, BatchInvariantBackwardsAreOrdered) {
  const auto bytes = [](const char* kernel, bool deterministic, bool invariant) {
    Problem p = backward_problem();
    p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = p.dtype_dout = p.dtype_dq = p.dtype_dk = p.dtype_dv =
        TILEWISE_BF16;
    p.head_dim = p.head_dim_v = 128;
    p.deterministic = deterministic;
    p.batch_invariant = invariant;
    Limits limits;
    limits.kernel = kernel;
    const auto made = plan(p, made_up_device(), limits);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made ? made->workspace_bytes : 0;
  };
  const char* wgmma = "backward_sm90_bf16_d128_64x128_simple";
  EXPECT_GT(bytes(wgmma, true, false), bytes(wgmma, false, false));  // the turns of each tile
  EXPECT_EQ(bytes(wgmma, false, true), bytes(wgmma, true, false));
  cuda::Facts facts;
  const Kernel unordered = simple_backward(&facts);
  Problem p = backward_problem();
  p.batch_invariant = 1;
  EXPECT_EQ(cuda::refuses(unordered, p, made_up_device()), "adds in any order");
  EXPECT_NE(explain(p, made_up_device()).find("gradients are summed in a fixed order"), std::string::npos);
}

// What every GPU has takes everything, deterministic too, in scratch of one number a row and head.
TEST(CudaRules, TheSimtBackwardTakesAll) {
  Problem p = backward_problem(16384);
  p.deterministic = 1;
  p.features = TILEWISE_HAS_BIAS | TILEWISE_HAS_MASK | TILEWISE_HAS_SINKS | TILEWISE_HAS_DLSE;
  p.dropout_p = 0.1f;
  EXPECT_EQ(cuda::refuses(simt(Op::backward), p, made_up_device(75)), "");
  EXPECT_EQ(cuda::scratch_bytes(simt(Op::backward), p, {}), int64_t{16384} * 16 * 4);
  const auto made = plan(backward_problem(), made_up_device());
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(std::string(made->kernel).rfind("backward_", 0), 0u);
  EXPECT_NE(explain(backward_problem(), made_up_device()).find("backward_simt_any"), std::string::npos);
}

TEST(CudaRules, ACpuPlanNeverTakesACudaRowAndTheOtherWayRound) {
  const Problem p = problem();
  const DeviceInfo gpu = made_up_device();
  const auto made = plan(p, gpu);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_TRUE(is_cuda(Registry::builtin().row(made->kernel_index, made->kernel)->target));
  EXPECT_EQ(made->device_kind, TILEWISE_CUDA);
  const auto cpu = DeviceInfo::query();
  ASSERT_TRUE(cpu.ok());
  const auto other = plan(p, *cpu);
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(is_cuda(Registry::builtin().row(other->kernel_index, other->kernel)->target));
}

TEST(CudaCost, CountsWavesWasteAndBytes) {
  const Kernel& kernel = simt();
  const auto of = [&](const Problem& p) { return cuda::estimate(kernel, p, made_up_device(), {}); };
  const Estimate even = of(problem(64 * 132));  // 16 * 132 tiles on 2 * 132 places
  EXPECT_NEAR(even.waves, 8.0, 1e-9);
  EXPECT_NEAR(even.waste, 0.0, 1e-9);
  EXPECT_DOUBLE_EQ(even.bytes, ideal_bytes(problem(64 * 132)));
  EXPECT_NEAR(of(problem(65)).waste, 1.0 - 65.0 * 65 / (128 * 128), 1e-9);
  Problem causal = problem(4096);
  causal.causal = 1;
  EXPECT_LT(of(causal).seconds, 0.6 * of(problem(4096)).seconds);
  EXPECT_LT(of(causal).waste, 0.05);
  EXPECT_GT(of(problem(8192)).seconds, 3.5 * of(problem(4096)).seconds);
}

// Five products of one size where forward has two.
TEST(CudaCost, BackwardCountsFiveProducts) {
  Kernel forward = simt();
  cuda::Facts facts = cuda::facts_of(simt(Op::backward));
  Kernel backward = simt(Op::backward);
  backward.facts = &facts;
  facts.percent = cuda::facts_of(forward).percent;
  facts.blocks = cuda::facts_of(forward).blocks;
  const double once = cuda::estimate(forward, problem(64 * 132), made_up_device(), {}).seconds;
  EXPECT_NEAR(cuda::estimate(backward, backward_problem(64 * 132), made_up_device(), {}).seconds / once, 2.5,
              0.01);
  EXPECT_NEAR(cuda::estimate(backward, backward_problem(65), made_up_device(), {}).waste,
              1.0 - 65.0 * 65 / (128 * 128), 1e-9);
}

std::string chosen(const Problem& p, uint64_t capability) {
  const DeviceInfo gpu = made_up_device(capability);
  const auto made = plan(p, gpu);
  return made.ok() ? Registry::builtin().row(made->kernel_index, made->kernel)->name
                   : made.status().message();
}

// Hopper's own rows where they have the code, then the tensor cores of every GPU since 8.0, then plain FMA.
TEST(CudaRules, TheFastestRowThatADeviceHasIsTaken) {
  Problem p = problem(4096);
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = TILEWISE_BF16;
  Problem masked = p;
  masked.features |= TILEWISE_HAS_MASK;
  Problem narrow = p;
  narrow.alignment = 4;
  Problem odd = p;
  odd.alignment = 2;
  Problem fp32 = problem(4096);
  Problem fp32_masked = fp32;
  fp32_masked.features |= TILEWISE_HAS_MASK;
  EXPECT_EQ(chosen(p, 90).rfind("forward_sm90_bf16_d64", 0), 0u) << chosen(p, 90);
  for (uint64_t capability : {80, 86, 87, 89, 90, 120}) {
    SCOPED_TRACE(capability);
    if (capability != 90) {
      EXPECT_EQ(chosen(p, capability), "forward_sm80_bf16_d64_128x128_simple");
    }
    EXPECT_EQ(chosen(masked, capability), "forward_sm80_bf16_d64_64x64_general");
    EXPECT_EQ(chosen(narrow, capability).rfind("forward_sm80_bf16_d64", 0), 0u) << chosen(narrow, capability);
    EXPECT_EQ(chosen(odd, capability), "forward_simt_any_64x64");
    EXPECT_EQ(chosen(fp32, capability), "forward_sm80_f32_d64_64x64_simple");
    EXPECT_EQ(chosen(fp32_masked, capability), "forward_simt_any_64x64");
  }
  EXPECT_EQ(chosen(p, 75), "forward_simt_any_64x64");
  const std::string reasons = explain(masked, made_up_device(75));
  EXPECT_NE(reasons.find("needs compute capability 8.0 or more; this device has 7.5"), std::string::npos)
      << reasons;
}

// Pieces of work of few steps go to the teams, which hide their starts and ends, and so do windows, where
// what little a team's 64 rows see beside the window counts; long ones to the tall tile.
TEST(CudaRules, ShortPiecesGoToTeamsAndLongOnesToTheTallTile) {
  const std::string teams = "forward_sm90_bf16_d64_128x64_t2_simple";
  const std::string tall = "forward_sm90_bf16_d64_192x128_s2_simple";
  Problem p = problem();
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = TILEWISE_BF16;
  const auto taken = [&](int64_t batch, int64_t seqlen) {
    p.batch = batch;
    p.seqlen_q = p.seqlen_kv = seqlen;
    return chosen(p, 90);
  };
  EXPECT_EQ(taken(64, 128), teams);
  EXPECT_EQ(taken(512, 128), teams);
  EXPECT_EQ(taken(64, 256), teams);
  EXPECT_EQ(taken(512, 256), teams);
  EXPECT_EQ(taken(64, 512), teams);
  // With fewer blocks than multiprocessors two warpgroups deal one tile's keys.
  EXPECT_EQ(taken(1, 256), "forward_sm90_bf16_d64_64x128_k2_simple");
  EXPECT_EQ(taken(1, 512), "forward_sm90_bf16_d64_64x128_k2_simple");
  EXPECT_EQ(taken(4, 8192), tall);
  p.causal = 1;
  EXPECT_EQ(taken(64, 512), teams);
  EXPECT_EQ(taken(4, 8192), tall);
  p.window_left = 1023;
  p.heads_q = 64;
  p.heads_kv = 8;
  EXPECT_EQ(taken(1, 32768), teams);
}

// Heads of a group that have few queries share tiles: of eight heads with 16 queries each one is left of
// eight.
TEST(CudaCost, HeadsOfAGroupShareTiles) {
  const Kernel& kernel = cuda_row("forward_sm90_bf16_d64_128x64_t2_simple");
  Problem p = problem(16);
  p.seqlen_kv = 4096;
  p.heads_q = p.heads_kv = 64;
  const Estimate apart = cuda::estimate(kernel, p, made_up_device(), {});
  p.heads_kv = 8;
  const Estimate shared = cuda::estimate(kernel, p, made_up_device(), {});
  EXPECT_NEAR(shared.waves, apart.waves / 8, 1e-9);
  EXPECT_NEAR(shared.waste, 0.0, 1e-9);
  EXPECT_NEAR(apart.waste, 0.75, 1e-9);  // of the tile's two fragments one is not walked
}

// A row for larger heads computes all of its dimensions.
TEST(CudaCost, PaddedDimensionsCost) {
  cuda::Facts facts = cuda::facts_of(simt());
  Kernel kernel = simt();
  kernel.target = Target::sm90;
  kernel.facts = &facts;
  facts.head_dim = facts.head_dim_v = 64;
  const Estimate fitting = cuda::estimate(kernel, problem(8192), made_up_device(), {});
  facts.head_dim = facts.head_dim_v = 256;
  const Estimate padded = cuda::estimate(kernel, problem(8192), made_up_device(), {});
  EXPECT_GT(padded.seconds, 3.5 * fitting.seconds);
  EXPECT_NEAR(padded.waste, 0.75, 1e-6);
}

TEST(CudaCost, ExplainShowsThem) {
  const std::string text = explain(problem(), made_up_device());
  EXPECT_NE(text.find(" waves, "), std::string::npos) << text;
  EXPECT_NE(text.find("132 multiprocessors, compute capability 9.0"), std::string::npos) << text;
}

// A machine without a driver gets a sentence, whatever the build.
TEST(CudaRuntime, WithoutADeviceTheAnswerIsASentence) {
  const auto count = cuda::device_count();
  if (count.ok()) GTEST_SKIP() << *count << " CUDA devices are here";
  EXPECT_NE(count.status().message().find("NVIDIA driver"), std::string::npos) << count.status().message();
  const auto info = DeviceInfo::query(TILEWISE_CUDA, 0);
  ASSERT_FALSE(info.ok());
  EXPECT_EQ(info.status().message(), count.status().message());
}

TEST(CudaRuntime, TheSentenceSaysWhatIsWrongWithTheDriver) {
  const auto says = [](cudaError_t error, int found) {
    return cuda::no_device(error, found, 13000).message();
  };
  EXPECT_EQ(says(cudaErrorInsufficientDriver, 12040),
            "the NVIDIA driver supports CUDA 12.4; this build needs 13.0 or later");
  EXPECT_NE(says(cudaErrorInsufficientDriver, 0).find("no NVIDIA driver was found"), std::string::npos);
  EXPECT_NE(says(cudaErrorNoDevice, 13000).find("shows no device"), std::string::npos);
  EXPECT_NE(says(cudaErrorSystemNotReady, 13000).find("the NVIDIA driver refused: "), std::string::npos);
  EXPECT_EQ(cuda::no_device(cudaErrorNoDevice, 0, 13000).code(), Code::device);
}

}  // namespace
}  // namespace tilewise
