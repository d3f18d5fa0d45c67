#include "plan/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "plan/made_up.h"

namespace tilewise {
namespace {

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::vector<Kernel>& table() {
  static const std::vector<Kernel> rows = [] {
    std::vector<Kernel> r{made_up::row("forward_slow", 900, 4), made_up::row("forward_fast", 100, 64),
                          made_up::row("forward_avx512", 10, 1, Target::avx512),
                          made_up::row("forward_oracle", 1, 0, Target::reference),
                          made_up::row("backward_only", 50, 8, Target::scalar, Op::backward)};
    r[0].refuses = [](const Kernel&, const Problem& p, const DeviceInfo&) -> std::string {
      return p.seqlen_q > 1000 ? "seqlen_q is above 1000" : "";
    };
    return r;
  }();
  return rows;
}

struct Planner : testing::Test {
  Planner() { registry.add(table()); }
  PlanRequest request() { return {.registry = registry, .problem = problem, .device = device}; }
  Plan plan(const PlanRequest& r) {
    Plan p;
    const Status s = make_plan(r, &p);
    EXPECT_TRUE(s.ok()) << s.message();
    return p;
  }
  Registry registry;
  Problem problem = made_up::problem();
  tilewise_device_info device = made_up::device();
};

TEST_F(Planner, TakesTheCheapestThatRuns) {
  const Plan p = plan(request());
  EXPECT_STREQ(p.kernel, "forward_fast");
  EXPECT_EQ(p.threads, 4);
  EXPECT_EQ(p.workspace_bytes, 256 + 4 * 64 * 1024);
  EXPECT_DOUBLE_EQ(p.predicted_ms, 0.1);
  EXPECT_EQ(p.from_tuning, 0);
  EXPECT_EQ(p.kernel_index, 1);
}

TEST_F(Planner, ADeviceWithMoreGetsMore) {
  device.isa |= TILEWISE_ISA_AVX512;
  EXPECT_STREQ(plan(request()).kernel, "forward_avx512");
}

TEST_F(Planner, SameRequestSamePlan) {
  const Plan a = plan(request()), b = plan(request());
  EXPECT_TRUE(plan_equal(a, b));
  Plan c = a;
  c.problem.causal = 1;
  EXPECT_FALSE(plan_equal(a, c));
  EXPECT_EQ(print_plan(a), print_plan(b));
  EXPECT_TRUE(says(print_plan(a), "forward_fast for forward f32 batch 1 heads 4/2 seqlen 64x64 head_dim 16"));
}

TEST_F(Planner, WorkspaceLimitTakesThreadsThenKernels) {
  auto r = request();
  r.max_workspace_bytes = 256 + 2 * 64 * 1024;
  const Plan fewer = plan(r);
  EXPECT_STREQ(fewer.kernel, "forward_fast");
  EXPECT_EQ(fewer.threads, 2);
  r.max_workspace_bytes = 256 + 16 * 1024;
  EXPECT_STREQ(plan(r).kernel, "forward_slow");
  r.max_workspace_bytes = 100;
  Plan none;
  const Status s = make_plan(r, &none);
  EXPECT_EQ(s.code(), Code::unsupported);
  EXPECT_TRUE(says(s.message(),
                   "forward_slow: needs 4.2 KiB (4352 bytes) of workspace even with one thread; "
                   "max_workspace_bytes is 100"))
      << s.message();
}

TEST_F(Planner, NoKernelListsEveryReason) {
  problem = made_up::problem(2000);
  problem.dtype_q = problem.dtype_k = TILEWISE_BF16;
  Plan none;
  const Status s = make_plan(request(), &none);
  EXPECT_EQ(s.code(), Code::unsupported);
  EXPECT_TRUE(says(s.message(), "forward_slow, forward_fast: reads q, k, v in f32; given bf16, bf16, f32"))
      << s.message();
  EXPECT_TRUE(says(s.message(), "forward_avx512: needs avx512; this device has scalar avx2"));
  EXPECT_TRUE(says(s.message(), "forward_oracle: the oracle"));
  EXPECT_FALSE(says(s.message(), "backward_only"));
}

TEST_F(Planner, ForcedKernels) {
  auto r = request();
  r.forced = "forward_oracle";
  EXPECT_STREQ(plan(r).kernel, "forward_oracle");
  r.forced = "backward_only, forward_slow";
  EXPECT_STREQ(plan(r).kernel, "forward_slow");
  Plan none;
  r.forced = "forward_fsat";
  Status s = make_plan(r, &none);
  EXPECT_EQ(s.code(), Code::invalid);
  EXPECT_TRUE(says(s.message(), "\"forward_fsat\"") &&
              says(s.message(), "known: forward_slow, forward_fast"));
  r.forced = "backward_only";
  s = make_plan(r, &none);
  EXPECT_EQ(s.code(), Code::unsupported);
  EXPECT_TRUE(says(s.message(), "the problem is forward and the forced kernel backward_only is not"));
  problem = made_up::problem(2000);
  r.forced = "forward_slow";
  s = make_plan(r, &none);
  EXPECT_EQ(s.code(), Code::unsupported);
  EXPECT_TRUE(says(s.message(), "forward_slow: seqlen_q is above 1000")) << s.message();
  EXPECT_FALSE(says(s.message(), "forward_fast"));
}

TEST_F(Planner, AMeasuredLineBeatsTheModel) {
  auto tuning = parse_tuning(
      "device: X\nforward f32 d16 q64 kv64 gqa2 full = forward_slow 5us\n"
      "forward f32 d16 q64 kv64 gqa2 full = forward_gone 1us\n");
  ASSERT_TRUE(tuning.ok()) << tuning.status().message();
  auto r = request();
  r.tuning = &*tuning;
  const Plan p = plan(r);
  EXPECT_STREQ(p.kernel, "forward_slow");
  EXPECT_EQ(p.from_tuning, 1);
  const std::string text = explain(r);
  EXPECT_TRUE(says(text, "tuning names kernel forward_gone, which this library does not have")) << text;
  EXPECT_TRUE(says(text, "<- chosen: measured"));
  problem = made_up::problem(2000);  // no line near
  EXPECT_EQ(plan(r).from_tuning, 0);
}

TEST_F(Planner, RowsMayBeAddedAtRunTime) {
  const std::vector<Kernel> more{made_up::row("forward_mine", 1, 1)};
  registry.add(more);
  EXPECT_STREQ(plan(request()).kernel, "forward_mine");
}

TEST_F(Planner, ExplainRanksAndRefuses) {
  const std::string text = explain(request());
  EXPECT_TRUE(says(text, "  1  forward_fast    0.100 ms predicted")) << text;
  EXPECT_TRUE(says(text, "  2  forward_slow    0.900 ms predicted")) << text;
  EXPECT_TRUE(says(text, "  -  forward_avx512  refused: needs avx512")) << text;
  EXPECT_TRUE(
      says(text, "forward_oracle  refused: the oracle in double precision runs only when it is forced"))
      << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3 + 4) << text;
  problem.head_dim = 0;
  EXPECT_TRUE(says(explain(request()), "head_dim is 0"));
}

TEST_F(Planner, TakesMicroseconds) {
  Plan p;
  double best = 1e9;
  for (int i = 0; i < 50; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(make_plan(request(), &p).ok());
    best = std::min(
        best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  RecordProperty("plan_microseconds", std::to_string(best));
  EXPECT_LT(best, 500.0);  // the design says 50; ten times that under sanitizers
}

TEST(BuiltIn, RegistryHoldsTheReferenceAndUniqueNames) {
  const Registry& r = Registry::builtin();
  EXPECT_GE(r.find("forward_reference_f64"), 0);
  EXPECT_GE(r.find("backward_reference_f64"), 0);
  for (const Kernel* k : r.rows()) EXPECT_EQ(r.rows()[static_cast<size_t>(r.find(k->name))], k) << k->name;
}

TEST(ProblemText, PrintsWhatDiffers) {
  Problem p = made_up::problem();
  p.with_causal().with_window(127, 0);
  p.features = TILEWISE_HAS_KV_LENGTHS | TILEWISE_HAS_LSE;
  p.softcap = 30;
  EXPECT_EQ(p.to_string(),
            "forward f32 batch 1 heads 4/2 seqlen 64x64 head_dim 16 causal window 127,0 softcap 30 with "
            "kv_lengths,lse");
  char small[8];
  EXPECT_EQ(tilewise_problem_print(&p, small, sizeof small), p.to_string().size());
  EXPECT_STREQ(small, "forward");
}

}  // namespace
}  // namespace tilewise
