// Threads: the same bits for any number of them, many calls at once on one context, and nothing for
// ThreadSanitizer to say (this program is in its tier).
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "core/text.h"
#include "tests/support/kernel_run.h"

namespace tilewise {
namespace {

using namespace testing_support;

constexpr const char* kLine =
    "name=threads batch=2 heads_q=4 heads_kv=2 seqlen_q=70 seqlen_kv=150 head_dim=16 causal=bottom-right "
    "bias=11qk:random sinks=random dlse=1 dtype=f32";

CaseData prepared(const std::string& line, DType dtype) {
  CaseData data(parsed(line), dtype, 3);
  data.set_forward_result(expect_forward(data.params(Direction::forward)));
  data.poison_outputs(Direction::backward, Poison::nan);
  return data;
}

Expectation answer_of(CaseData& data, Direction direction) {
  return direction == Direction::forward ? expect_forward(data.params(Direction::forward))
                                         : expect_backward(data.params(Direction::backward));
}

TEST(Threads, TheirNumberChangesNoBit) {
  for (const std::string line :
       {kLine,
        "name=packed heads_q=2 head_dim=24 cu_seqlens_q=0,90,91,160 cu_seqlens_kv=0,200,201,300 "
        "causal=bottom-right window=50,-1 dtype=f32",
        "name=decode batch=2 heads_q=4 heads_kv=1 seqlen_q=1 seqlen_kv=600 head_dim=32 dtype=f32"}) {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      for (const Kernel* kernel : kernels_of(direction)) {
        if (kernel->target == Target::reference) continue;
        SCOPED_TRACE(cat(kernel->name, " on ", line));
        CaseData data = prepared(line + words_for(*kernel), dtype_for(*kernel));
        const Expectation answer = answer_of(data, direction);
        LoggedContext logged(8);
        const RunResult first = run_kernel(logged, kernel->name, data, direction, {1, Poison::nan});
        ASSERT_EQ(first.failure, "");
        if (!first.ran) continue;
        const auto bits = output_bits(data, direction, answer);
        for (const int threads : {2, 3, 4, 8}) {
          ASSERT_EQ(run_kernel(logged, kernel->name, data, direction, {threads, Poison::nan}).failure, "");
          EXPECT_EQ(first_difference(data, direction, answer, bits), "") << threads << " threads";
        }
      }
    }
  }
}

// One context and one plan, four callers with a workspace and outputs each.
TEST(Threads, CallersShareContextAndPlan) {
  ContextOptions options;
  options.threads = 2;
  const auto context = Context::create(options);
  ASSERT_TRUE(context.ok()) << context.status().message();
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    CaseData first = prepared(kLine, DType::f32);
    const Expectation answer = answer_of(first, direction);
    const auto plan = tilewise::plan(first.problem(direction), *context);
    if (!plan && plan.status().code() == Code::unsupported) continue;  // no such kernel in this build
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ASSERT_TRUE(prepare(*context, *plan).ok());
    std::vector<CaseData> datas;
    for (int n = 0; n < 4; ++n) datas.push_back(prepared(kLine, DType::f32));
    std::atomic<int> failures{0};
    std::vector<std::thread> callers;
    for (CaseData& data : datas) {
      callers.emplace_back([&] {
        Workspace workspace(*plan);
        const Tensors tensors = data.tensors(direction);
        for (int repeat = 0; repeat < 5; ++repeat) {
          const Status status = direction == Direction::forward
                                    ? forward(*context, *plan, tensors, workspace)
                                    : backward(*context, *plan, tensors, workspace);
          if (!status) ++failures;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(failures, 0);
    for (CaseData& data : datas) {
      const Comparison worst = compare_outputs(data, direction, answer);
      EXPECT_TRUE(worst.passed()) << worst.text;
      EXPECT_EQ(first_difference(data, direction, answer, output_bits(datas[0], direction, answer)), "");
    }
  }
}

// The one-call form from many threads: they meet in the plan cache and the workspace pool.
TEST(Threads, CallersShareTheOneCallForm) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok()) << context.status().message();
  std::vector<std::string> lines;
  for (int n = 1; n <= 12; ++n) {
    lines.push_back(cat("name=many heads_q=2 head_dim=8 dtype=f32 causal=bottom-right seqlen_q=", 5 * n));
  }
  std::vector<CaseData> datas;
  for (int caller = 0; caller < 4; ++caller) {
    for (const std::string& line : lines) datas.push_back(prepared(line, DType::f32));
  }
  std::vector<std::string> failures(datas.size());
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (size_t n = 0; n < lines.size(); ++n) {
        CaseData& data = datas[caller * lines.size() + n];
        Problem one_call;
        one_call.with_causal();
        const Status status = attention(*context, one_call, data.tensors(Direction::forward));
        if (!status) failures[caller * lines.size() + n] = status.message();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (size_t n = 0; n < datas.size(); ++n) {
    EXPECT_EQ(failures[n], "");
    const Comparison worst =
        compare_outputs(datas[n], Direction::forward, answer_of(datas[n], Direction::forward));
    EXPECT_TRUE(worst.passed()) << worst.text;
  }
}

// A workspace serves one call at a time: a second caller is refused, and the first is not disturbed.
TEST(Threads, AWorkspaceIsNotShared) {
  CaseData data = prepared(kLine, DType::f32);
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  Limits limits;
  limits.kernel = "forward_reference_f64";
  const auto plan = tilewise::plan(data.problem(Direction::forward), *context, limits);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  Workspace workspace(*plan);
  CaseData other = prepared(kLine, DType::f32);
  std::atomic<int> served{0}, refused{0};
  const auto call = [&](CaseData& own) {
    const Status status = forward(*context, *plan, own.tensors(Direction::forward), workspace);
    if (status.ok()) {
      ++served;
    } else if (status.message().find("workspace") != std::string::npos) {
      ++refused;
    }
  };
  std::thread a([&] { call(data); }), b([&] { call(other); });
  a.join();
  b.join();
  EXPECT_GE(served, 1);
  EXPECT_EQ(served + refused, 2);
  call(data);  // free again
  EXPECT_GE(served, 2);
}

}  // namespace
}  // namespace tilewise
