// What a call costs beyond its kernel, and what planning costs. The kernel here does nothing, so what is
// timed is the rest: checks, binding, the launch. Targets: call/ 2 us, plan/ 50 us (scripts/bench_cpu.sh
// holds them).
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "api/context.h"
#include "tune/problem_data.h"

namespace {

using namespace tilewise;

Status nothing_forward(const Kernel&, const ForwardParams& params, const Schedule&, const Launch&) {
  benchmark::DoNotOptimize(params.q.data);
  return {};
}
Status nothing_backward(const Kernel&, const BackwardParams& params, const Schedule&, const Launch&) {
  benchmark::DoNotOptimize(params.dq.data);
  return {};
}

Kernel nothing(Op op) {
  return {.name = op == Op::forward ? "forward_nothing" : "backward_nothing",
          .op = op,
          .target = Target::scalar,
          .dtype = DType::f32,
          .head_dim = 0,
          .tile_m = 16,
          .tile_n = 16,
          .refuses = [](const Kernel&, const Problem&, const DeviceInfo&) { return std::string(); },
          .schedule =
              [](const Kernel& k, const Problem&, const DeviceInfo&, int threads) {
                return Schedule{threads, k.tile_m, k.tile_n, 1};
              },
          .scratch_bytes = [](const Kernel&, const Problem&, const Schedule&) { return int64_t{4096}; },
          .estimate =
              [](const Kernel&, const Problem&, const DeviceInfo&, const Schedule&) {
                return Estimate{1.0, 1.0};
              },
          .forward = op == Op::forward ? &nothing_forward : nullptr,
          .backward = op == Op::backward ? &nothing_backward : nullptr};
}
const Kernel g_rows[] = {nothing(Op::forward), nothing(Op::backward)};

// A small call: one head, 16 queries and keys.
struct Small {
  explicit Small(Direction direction, const char* forced = nullptr) : context(make_context(forced)) {
    tune::ProblemSize size;
    size.direction = direction;
    size.heads_q = size.heads_kv = 1;
    size.seqlen_q = size.seqlen_kv = 16;
    problem = tune::make_problem(size);
    auto made = tune::ProblemData::make(*context, problem, 1);
    if (made) data.emplace(std::move(*made));
  }
  static Expected<Context> make_context(const char* forced) {
    ContextOptions options;
    options.threads = 1;
    auto context = Context::create(options);
    if (context && forced) {
      context->get()->registry.add(g_rows);
      context->get()->forced = forced;
    }
    return context;
  }
  Expected<Context> context;
  Problem problem;
  std::optional<tune::ProblemData> data;
};

void planned_call(benchmark::State& state, Direction direction) {
  const Small small(direction, direction == Direction::forward ? g_rows[0].name : g_rows[1].name);
  const auto call = tune::PlannedCall::make(*small.context, small.problem, small.data->tensors());
  if (!call) return state.SkipWithError(call.status().message().c_str());
  for (auto _ : state)
    if (Status status = call->run(); !status) return state.SkipWithError(status.message().c_str());
}

void one_call(benchmark::State& state, Direction direction) {
  const Small small(direction, direction == Direction::forward ? g_rows[0].name : g_rows[1].name);
  Problem options;
  options.direction = small.problem.direction;
  options.wants = small.problem.wants;
  for (auto _ : state)
    if (Status status = attention(*small.context, options, small.data->tensors()); !status)
      return state.SkipWithError(status.message().c_str());
}

void make_plan_anew(benchmark::State& state, Direction direction) {
  const auto device = DeviceInfo::query();
  Problem problem = Small(direction).problem;
  for (auto _ : state) {
    const auto made = plan(problem, *device);
    if (!made) return state.SkipWithError(made.status().message().c_str());
    benchmark::DoNotOptimize(made->workspace_bytes);
  }
}

BENCHMARK_CAPTURE(planned_call, forward, Direction::forward)->Name("call/forward");
BENCHMARK_CAPTURE(planned_call, backward, Direction::backward)->Name("call/backward");
BENCHMARK_CAPTURE(one_call, forward, Direction::forward)->Name("one_call/forward");
BENCHMARK_CAPTURE(one_call, backward, Direction::backward)->Name("one_call/backward");
BENCHMARK_CAPTURE(make_plan_anew, forward, Direction::forward)->Name("plan/forward");
BENCHMARK_CAPTURE(make_plan_anew, backward, Direction::backward)->Name("plan/backward");

}  // namespace

BENCHMARK_MAIN();
