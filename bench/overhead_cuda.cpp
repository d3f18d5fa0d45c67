// The host's time of a CUDA call, planned and in the one-call form, beside that of an empty launch: what a
// call costs beyond its launches. The device works behind; it is waited for outside of what is timed.
#include <benchmark/benchmark.h>

#include "bench/empty_launch.h"
#include "cuda/runtime.h"
#include "tune/problem_data.h"

namespace {

using namespace tilewise;

constexpr int kInARow = 200;  // fewer than a stream takes before a launch waits

template <typename Launch>
void in_rows(benchmark::State& state, Launch launch) {
  while (state.KeepRunningBatch(kInARow)) {
    for (int i = 0; i < kInARow; ++i)
      if (!launch()) return state.SkipWithError("a launch failed");
    state.PauseTiming();
    const Status status = cuda::synchronize(0);
    state.ResumeTiming();
    if (!status) return state.SkipWithError(status.message().c_str());
  }
}

void empty_launch(benchmark::State& state) {
  if (const auto count = cuda::device_count(); !count)
    return state.SkipWithError(count.status().message().c_str());
  for (int i = 0; i < kInARow; ++i)  // what the first calls of a process cost is no call's
    if (!launch_empty() || !cuda::synchronize(0)) return state.SkipWithError("a launch failed");
  in_rows(state, [] { return launch_empty(); });
}

// A small call on the device, of the row `forced`: one head, 64 queries and keys.
template <typename Run>
void small_call(benchmark::State& state, DType dtype, const char* forced, Run run) {
  ContextOptions options;
  options.device_kind = TILEWISE_CUDA;
  options.kernel = forced;
  const auto context = Context::create(options);
  if (!context) return state.SkipWithError(context.status().message().c_str());
  tune::ProblemSize size;
  size.dtype = dtype;
  size.heads_q = size.heads_kv = 1;
  size.head_dim = size.head_dim_v = size.seqlen_q = size.seqlen_kv = 64;
  const Problem problem = tune::make_problem(size);
  const auto data = tune::ProblemData::make(*context, problem, 1);
  if (!data) return state.SkipWithError(data.status().message().c_str());
  run(*context, problem, data->tensors());
}

void planned_call(benchmark::State& state, DType dtype, const char* kernel) {
  small_call(state, dtype, kernel,
             [&](const Context& context, const Problem& problem, const Tensors& tensors) {
               const auto call = tune::PlannedCall::make(context, problem, tensors, kernel);
               if (!call) return state.SkipWithError(call.status().message().c_str());
               in_rows(state, [&] { return call->run().ok(); });
             });
}

void one_call(benchmark::State& state, DType dtype, const char* kernel) {
  small_call(state, dtype, kernel, [&](const Context& context, const Problem&, const Tensors& tensors) {
    const Problem options;
    in_rows(state, [&] { return attention(context, options, tensors).ok(); });
  });
}

BENCHMARK(empty_launch)->Name("cuda/empty_launch");
BENCHMARK_CAPTURE(planned_call, simt, DType::bf16, "forward_simt_any_64x64")->Name("cuda/call/simt");
BENCHMARK_CAPTURE(planned_call, sm80, DType::bf16, "forward_sm80_bf16_d64_128x128_simple")
    ->Name("cuda/call/sm80");
BENCHMARK_CAPTURE(planned_call, sm90, DType::bf16, "forward_sm90_bf16_d64_128x128_s2_simple")
    ->Name("cuda/call/sm90");
BENCHMARK_CAPTURE(planned_call, split, DType::bf16, "forward_sm80_bf16_d64_16x128_split_simple")
    ->Name("cuda/call/split");
BENCHMARK_CAPTURE(planned_call, f32, DType::f32, "forward_sm80_f32_d64_64x64_simple")
    ->Name("cuda/call/f32_2_launches");
BENCHMARK_CAPTURE(one_call, sm80, DType::bf16, "forward_sm80_bf16_d64_128x128_simple")
    ->Name("cuda/one_call/sm80");
BENCHMARK_CAPTURE(one_call, sm90, DType::bf16, "forward_sm90_bf16_d64_128x128_s2_simple")
    ->Name("cuda/one_call/sm90");

}  // namespace
