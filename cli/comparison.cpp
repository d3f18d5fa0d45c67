#include "cli/comparison.h"

#include <algorithm>
#include <climits>
#include <memory>
#include <optional>

#include "api/context.h"
#include "cli/clock.h"
#include "cli/memory.h"
#include "cli/text.h"
#include "core/cost.h"
#include "cuda/mirror.h"
#include "cuda/runtime.h"
#include "plan/registry.h"

namespace tilewise::cli {
namespace {

Status run_once(const Device& device, const Plan& plan, const Tensors& tensors, const Workspace& workspace) {
  return plan.problem.direction == TILEWISE_BACKWARD ? backward(device.context(), plan, tensors, workspace)
                                                     : forward(device.context(), plan, tensors, workspace);
}

// Of the rows with this form, the one that the planner thinks fastest.
Expected<Plan> best_of(const Device& device, const Problem& problem, bool standard) {
  const Op op = problem.direction == TILEWISE_BACKWARD ? Op::backward : Op::forward;
  std::optional<Plan> best;
  std::string reasons;
  for (const Kernel* row : Registry::builtin().rows()) {
    if (row->op != op || (row->form == Form::standard) != standard || row->target == Target::reference)
      continue;
    if (tilewise::is_cuda(row->target) != device.is_cuda()) continue;
    const auto plan = device.plan(problem, row->name);
    if (!plan)
      reasons = plan.status().message();
    else if (!best || plan->predicted_ms < best->predicted_ms)
      best = *plan;
  }
  if (best) return *best;
  return Status(Code::unsupported,
                reasons.empty() ? "this build has no such kernel for this device" : reasons);
}

// Scores of every head in fp32, softmax in place; backward holds the weights and dP.
double all_heads_bytes(const Problem& p) {
  double sequences = static_cast<double>(p.batch);
  if (p.packed_q && p.seqlen_q > 0)
    sequences = std::min(sequences, static_cast<double>(p.total_q) / static_cast<double>(p.seqlen_q));
  const double scores = sequences * static_cast<double>(p.heads_q) * static_cast<double>(p.seqlen_q) *
                        static_cast<double>(p.seqlen_kv) * 4.0;
  return p.direction == TILEWISE_BACKWARD ? 2 * scores : scores;
}

// Gives every task a worker's scratch of its own, so that nothing of one head is written over by another.
class OwnScratch : public Executor {
 public:
  explicit OwnScratch(Executor& inner) : inner_(inner) {}
  int workers() const override { return INT_MAX; }
  void parallel_for(int64_t count, int, tilewise_task task, void* data) override {
    inner_.run(count, inner_.workers(),
               [&](int64_t index, int) { task(data, index, static_cast<int32_t>(index)); });
  }

 private:
  Executor& inner_;
};

const Kernel* row_of(const Plan& plan) { return Registry::builtin().row(plan.kernel_index, plan.kernel); }

Schedule all_heads_schedule(const Plan& plan) {
  return {.threads = static_cast<int>(std::max<int64_t>(plan.problem.batch * plan.problem.heads_q, 1)),
          .tile_m = plan.tile_m,
          .tile_n = plan.tile_n,
          .num_splits = plan.num_splits};
}

}  // namespace

double flops_of(const Problem& p, double pairs) {
  const double d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.head_dim_v);
  return pairs * (p.direction == TILEWISE_BACKWARD ? 6 * d + 4 * dv : 2 * d + 2 * dv);
}

bool is_standard(const Plan& plan) {
  const Kernel* row = Registry::builtin().row(plan.kernel_index, plan.kernel);
  return row && row->form == Form::standard;
}

MeasuredCall MeasuredCall::of_plan(const Device& device, const Plan& plan, const Tensors& tensors) {
  MeasuredCall call;
  call.plan_ = plan;
  call.chosen_by_ = device.chosen_by(plan);
  call.scratch_bytes_ = plan.workspace_bytes;
  call.bytes_moved_ = plan.predicted_bytes;
  auto workspace = std::make_shared<Workspace>();
  call.allocate_ = [=, &device] {
    auto made = Workspace::make(plan);
    if (!made) return made.status();
    *workspace = std::move(*made);
    return prepare(device.context(), plan);
  };
  if (plan.device_kind == TILEWISE_CUDA) {
    call.run_on_cuda(device, tensors, workspace);
    return call;
  }
  call.once_ = [=, &device, &tensors] { return run_once(device, plan, tensors, *workspace); };
  return call;
}

// To the device once, back after the first run; then graph replays, by the device's clock.
void MeasuredCall::run_on_cuda(const Device& device, const Tensors& tensors,
                               std::shared_ptr<Workspace> workspace) {
  struct Twins {
    explicit Twins(int index) : mirror(index) {}
    cuda::Mirror mirror;
    Tensors tensors{};
    std::optional<cuda::GraphTimer> graph;
  };
  const Plan plan = plan_;
  auto twins = std::make_shared<Twins>(plan.device_index);
  const auto launch = [=, &device](void* stream) {
    return plan.problem.direction == TILEWISE_BACKWARD
               ? backward(device.context(), plan, twins->tensors, *workspace, stream)
               : forward(device.context(), plan, twins->tensors, *workspace, stream);
  };
  const auto prepare_first = allocate_;
  allocate_ = [=, &tensors] {
    if (Status s = prepare_first(); !s) return s;
    twins->mirror.add(tensors);
    if (Status s = twins->mirror.upload(); !s) return s;
    twins->tensors = twins->mirror.twins(tensors);
    return Status();
  };
  once_ = [=, &tensors] {
    Status s = launch(nullptr);
    if (s.ok()) s = cuda::synchronize(plan.device_index);
    const bool backward = plan.problem.direction == TILEWISE_BACKWARD;
    const std::vector<const tilewise_tensor*> outputs =
        backward ? std::vector{&tensors.dq, &tensors.dk, &tensors.dv, &tensors.dbias, &tensors.dsinks}
                 : std::vector{&tensors.o, &tensors.lse};
    for (const tilewise_tensor* t : outputs)
      if (s.ok() && t->dtype != TILEWISE_NONE) s = twins->mirror.download(*t);
    return s;
  };
  timed_ = [=]() -> Expected<double> {
    if (!twins->graph) {
      constexpr int kCalls = 20;
      auto made = cuda::GraphTimer::capture(plan.device_index, kCalls, launch);
      if (!made) return made.status();
      twins->graph = std::move(*made);
      if (const auto warm = twins->graph->milliseconds(); !warm) return warm;
    }
    return twins->graph->milliseconds();
  };
}

MeasuredCall MeasuredCall::all_heads(const Device& device, const Plan& plan, const ForwardParams& params) {
  const Kernel& row = *row_of(plan);
  const Schedule schedule = all_heads_schedule(plan);
  MeasuredCall call;
  call.plan_ = plan;
  call.chosen_by_ = device.chosen_by(plan);
  call.scratch_bytes_ = row.scratch_bytes(row, plan.problem, schedule);
  call.bytes_moved_ = ideal_bytes(plan.problem) + 2 * score_matrix_bytes(plan.problem);
  auto scratch = std::make_shared<Buffer>();
  auto executor = std::make_shared<OwnScratch>(*device.context().get()->executor);
  const int64_t bytes = call.scratch_bytes_;
  call.allocate_ = [=] {
    *scratch = Buffer(bytes);
    return scratch->data() ? Status() : Status(Code::out_of_memory, "no memory for the scores of all heads");
  };
  call.once_ = [=, &row, &params] {
    return row.forward(
        row, params, schedule,
        {.executor = executor.get(), .scratch = scratch->data(), .scratch_bytes = bytes, .stream = nullptr});
  };
  return call;
}

Status MeasuredCall::start() {
  const bool can_reset = reset_peak_resident();
  const int64_t before = resident_bytes();
  if (Status s = allocate_(); !s) return s;
  const double start = seconds_now();
  if (Status s = once_(); !s) return s;
  first_seconds_ = seconds_now() - start;
  peak_bytes_ = peak_resident_bytes();
  if (can_reset && before > 0) extra_bytes_ = std::max<int64_t>(0, peak_bytes_ - before);
  return {};
}

Status MeasuredCall::run_timed() {
  if (timed_) {
    const auto ms = timed_();
    if (ms) ms_.push_back(*ms);
    return ms.status();
  }
  const double start = seconds_now();
  const Status s = once_();
  ms_.push_back((seconds_now() - start) * 1e3);
  return s;
}

Json MeasuredCall::result(double pairs) const {
  const bool warmed = !ms_.empty();
  std::vector<double> ms = warmed ? ms_ : std::vector<double>{first_seconds_ * 1e3};
  std::sort(ms.begin(), ms.end());
  const double median = ms.size() % 2 ? ms[ms.size() / 2] : (ms[ms.size() / 2 - 1] + ms[ms.size() / 2]) / 2;
  const double flops = flops_of(plan_.problem, pairs);
  return object({{"kernel", plan_.kernel},
                 {"standard", is_standard(plan_)},
                 {"chosen_by", chosen_by_},
                 {"threads", plan_.threads},
                 {"tile_m", plan_.tile_m},
                 {"tile_n", plan_.tile_n},
                 {"num_splits", plan_.num_splits},
                 {"runs", ms.size()},
                 {"warm_up", warmed},
                 {"ms_min", ms.front()},
                 {"ms_median", median},
                 {"ms_max", ms.back()},
                 {"predicted_ms", plan_.predicted_ms},
                 {"flops", flops},
                 {"tflops", median > 0 ? flops / median * 1e-9 : 0.0},
                 {"workspace_bytes", scratch_bytes_},
                 {"extra_bytes_measured", extra_bytes_ < 0 ? Json(nullptr) : Json(extra_bytes_)},
                 {"process_peak_bytes_measured", peak_bytes_},
                 {"bytes_moved_modelled", bytes_moved_}});
}

Status time_in_turns(const std::vector<MeasuredCall*>& calls, double seconds) {
  constexpr int kMostRuns = 15;
  constexpr double kLongRun = 0.5;
  std::vector<MeasuredCall*> quick;
  double round = 0;
  for (MeasuredCall* call : calls)
    if (call->first_seconds() <= kLongRun) {
      quick.push_back(call);
      round += call->first_seconds();
    }
  const double start = seconds_now();
  for (int runs = 0; runs < kMostRuns && (runs == 0 || seconds_now() - start + round < seconds); ++runs) {
    for (MeasuredCall* call : quick)
      if (Status s = call->run_timed(); !s) return s;
    if (!quick.empty()) std::rotate(quick.begin(), quick.begin() + 1, quick.end());
  }
  return {};
}

std::vector<Alternative> alternatives(const Device& device, const Plan& plan, const Tensors& tensors,
                                      const ForwardParams& params) {
  std::vector<Alternative> list;
  const auto best_standard = best_of(device, plan.problem, true);
  const auto add = [&](const char* key, const char* label, const Expected<Plan>& best) {
    Alternative other;
    other.key = key;
    other.label = label;
    if (best) {
      other.needs_bytes = static_cast<double>(best->workspace_bytes);
      other.call = MeasuredCall::of_plan(device, *best, tensors);
    } else {
      other.not_run = best.status().message();
    }
    list.push_back(std::move(other));
  };
  if (is_standard(plan)) add("fused", "fused", best_of(device, plan.problem, false));
  add("standard_one_head", "standard, one head at a time", best_standard);
  Alternative all;
  all.key = "standard_all_heads";
  all.label = "standard, all heads at once";
  all.needs_bytes = all_heads_bytes(plan.problem);
  if (!best_standard) {
    all.not_run = best_standard.status().message();
  } else if (plan.problem.direction == TILEWISE_BACKWARD) {
    all.not_run = "only forward is run this way";
  } else {
    const Kernel& row = *row_of(*best_standard);
    all.needs_bytes =
        static_cast<double>(row.scratch_bytes(row, plan.problem, all_heads_schedule(*best_standard)));
    all.call = MeasuredCall::all_heads(device, *best_standard, params);
  }
  list.push_back(std::move(all));
  for (Alternative& other : list) {
    const double free = static_cast<double>(available_memory());
    if (!other.call || other.needs_bytes <= 0.9 * free) continue;
    other.call.reset();
    other.not_run = "needs " + bytes_text(other.needs_bytes) + ", " + bytes_text(free) + " free";
  }
  return list;
}

Json describe(const Problem& p) {
  const auto type = [](int32_t dtype) { return name_of(static_cast<DType>(dtype)); };
  Json j = object({{"text", p.to_string()},
                   {"dtype", type(p.dtype_q)},
                   {"batch", p.batch},
                   {"heads_q", p.heads_q},
                   {"heads_kv", p.heads_kv},
                   {"head_dim", p.head_dim},
                   {"head_dim_v", p.head_dim_v},
                   {"seqlen_q", p.seqlen_q},
                   {"seqlen_kv", p.seqlen_kv},
                   {"causal", p.causal != 0}});
  if (p.window_left >= 0 || p.window_right >= 0) j["window"] = {p.window_left, p.window_right};
  if (p.packed_q) j["total_q"] = p.total_q;
  if (p.packed_kv) j["total_kv"] = p.total_kv;
  return j;
}

}  // namespace tilewise::cli
