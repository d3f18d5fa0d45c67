#include "cli/bench_cuda.h"

#include <algorithm>

#include "api/context.h"
#include "tune/cold_calls.h"

namespace tilewise::cli {
namespace {

constexpr int64_t kColdBytes = int64_t{272} << 20;  // of caches in turns
constexpr int kColdCalls = 50;                      // of a graph, at least

}  // namespace

// Graph replays, timed by the device's events; the peak likewise. Decode walks caches that no L2 holds
// together.
Expected<std::vector<BenchRow>> CudaBench::time(BenchRow* ours, const tune::PlannedCall& call,
                                                const Tensors& tensors, bool three_step) {
  if (!peak_) {
    auto made = cuda::Peak::make(device_);
    if (!made) return made.status();
    peak_.emplace(std::move(*made));
  }
  const bool decode = ours->point.decode;
  std::vector<double> rates;
  const tune::Candidate burst{.name = "peak", .run = {}, .timed = [&]() -> Expected<double> {
                                const auto rate = decode ? peak_->read_bytes() : peak_->matrix_flops();
                                if (rate) rates.push_back(*rate);
                                return rate ? Expected<double>(1.0) : rate;
                              }};
  std::vector<tune::Candidate> candidates{{.name = ours->kernel, .run = {}}, burst};
  std::deque<cuda::GraphTimer> graphs;
  std::optional<tune::ColdCalls> cold;
  if (decode) {
    auto made = tune::ColdCalls::make(call, tensors, kColdBytes);
    if (!made) return made.status();
    cold.emplace(std::move(*made));
    auto graph = cuda::GraphTimer::capture(device_, std::max(kColdCalls, cold->copies()),
                                           [&](void* stream) { return cold->run(stream); });
    if (!graph) return graph.status();
    graphs.push_back(std::move(*graph));
    candidates[0].timed = [&graphs] { return graphs.front().milliseconds(); };
  } else if (Status s = tune::time_on_device({&call, 1}, candidates, &graphs); !s) {
    return s;
  }
  std::vector<BenchRow> rows;
  std::optional<tune::PlannedCall> standard;
  if (three_step) {
    rows.push_back(*ours);
    rows[0].rival = "three-step";
    if (Status s = add_three_step(call.plan().problem, tensors, &standard, &candidates, &graphs, &rows[0]);
        !s)
      rows[0].not_run = s.message();
  }
  const auto timings = tune::measure(candidates, options_);
  for (const tune::Timing& timing : timings)
    if (!timing.status) return timing.status;
  ours->timing = timings[0];
  (decode ? ours->peak_bytes : ours->peak_flops) = tune::median_of(rates);
  for (BenchRow& row : rows) {
    row.peak_flops = ours->peak_flops;
    if (!standard) continue;
    row.timing = timings[2];
    row.times_ours = row.timing.median_ms / ours->timing.median_ms;
  }
  return rows;
}

// This library's own three-step row as a candidate: there is no BLAS to call here.
Status CudaBench::add_three_step(const Problem& problem, const Tensors& tensors,
                                 std::optional<tune::PlannedCall>* standard,
                                 std::vector<tune::Candidate>* candidates,
                                 std::deque<cuda::GraphTimer>* graphs, BenchRow* row) const {
  row->kernel.clear();
  row->workspace_bytes = 0;
  for (const Kernel* kernel : context_.get()->registry.rows()) {
    if (kernel->form != Form::standard || !is_cuda(kernel->target)) continue;
    auto call = tune::PlannedCall::make(context_, problem, tensors, kernel->name);
    if (!call) continue;
    tune::Candidate timed{.name = kernel->name, .run = {}};
    if (Status s = tune::time_on_device({&*call, 1}, {&timed, 1}, graphs); !s) return s;
    row->kernel = kernel->name;
    row->workspace_bytes = call->plan().workspace_bytes;
    standard->emplace(std::move(*call));
    candidates->push_back(std::move(timed));
    return {};
  }
  return {Code::unsupported, "no row with three steps runs this problem"};
}

}  // namespace tilewise::cli
