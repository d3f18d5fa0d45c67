#include "cli/comparison.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <functional>
#include <optional>

#include "api/context.h"
#include "cli/memory.h"
#include "cli/text.h"
#include "core/cost.h"
#include "plan/registry.h"

namespace tilewise::cli {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
    if (row->op != op || row->standard != standard || row->target == Target::reference) continue;
    const auto plan = device.plan(problem, row->name);
    if (!plan)
      reasons = plan.status().message();
    else if (!best || plan->predicted_ms < best->predicted_ms)
      best = *plan;
  }
  if (best) return *best;
  return Status(Code::unsupported, reasons.empty() ? "this build has no such kernel" : reasons);
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

// `allocate` makes the scratch, `once` runs; memory is watched from before the first to after the second.
Expected<Json> measured(const Plan& plan, double pairs, MeasureBudget budget,
                        const std::function<void()>& allocate, const std::function<Status()>& once) {
  const bool can_reset = reset_peak_resident();
  const int64_t before = resident_bytes();
  const double start = seconds_now();
  allocate();
  if (Status s = once(); !s) return s;
  const double first = seconds_now() - start;
  const int64_t peak = peak_resident_bytes();

  std::vector<double> ms;
  const bool warmed = first <= budget.seconds / 2;
  if (!warmed) ms.push_back(first * 1e3);
  while (warmed && static_cast<int>(ms.size()) < budget.most_runs &&
         (ms.empty() || seconds_now() - start + ms.back() * 1e-3 < budget.seconds)) {
    const double from = seconds_now();
    if (Status s = once(); !s) return s;
    ms.push_back((seconds_now() - from) * 1e3);
  }
  std::sort(ms.begin(), ms.end());
  const double median = ms.size() % 2 ? ms[ms.size() / 2] : (ms[ms.size() / 2 - 1] + ms[ms.size() / 2]) / 2;
  const double flops = flops_of(plan.problem, pairs);
  Json result = {{"kernel", plan.kernel},
                 {"standard", is_standard(plan)},
                 {"chosen_by", plan.from_tuning ? "tuning" : "cost model"},
                 {"threads", plan.threads},
                 {"tile_m", plan.tile_m},
                 {"tile_n", plan.tile_n},
                 {"num_splits", plan.num_splits},
                 {"runs", ms.size()},
                 {"warm_up", warmed},
                 {"ms_min", ms.front()},
                 {"ms_median", median},
                 {"ms_max", ms.back()},
                 {"predicted_ms", plan.predicted_ms},
                 {"flops", flops},
                 {"tflops", median > 0 ? flops / median * 1e-9 : 0.0},
                 {"workspace_bytes", plan.workspace_bytes},
                 {"extra_bytes_measured", nullptr},
                 {"process_peak_bytes_measured", peak},
                 {"bytes_moved_modelled", plan.predicted_bytes}};
  if (can_reset && before > 0) result["extra_bytes_measured"] = std::max<int64_t>(0, peak - before);
  return result;
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
  return {.threads = static_cast<int>(plan.problem.batch * plan.problem.heads_q),
          .tile_m = plan.tile_m,
          .tile_n = plan.tile_n,
          .num_splits = plan.num_splits};
}

// The kernel that holds one head's scores a worker, with the scores of all heads held at once: what a
// framework without fusion allocates. Kind to it in one thing: a head's three steps follow each other while
// its scores are near.
Expected<Json> run_all_heads(const Device& device, const Plan& plan, const ForwardParams& params,
                             double pairs, MeasureBudget budget) {
  const Kernel& row = *row_of(plan);
  const Schedule schedule = all_heads_schedule(plan);
  const int64_t bytes = row.scratch_bytes(row, plan.problem, schedule);
  OwnScratch executor(*device.context().get()->executor);
  Buffer scratch;
  auto result = measured(
      plan, pairs, budget, [&] { scratch = Buffer(bytes); },
      [&]() -> Status {
        if (!scratch.data()) return Status(Code::out_of_memory, "no memory for the scores of all heads");
        return row.forward(
            row, params, schedule,
            {.executor = &executor, .scratch = scratch.data(), .scratch_bytes = bytes, .stream = nullptr});
      });
  if (result) {
    (*result)["workspace_bytes"] = bytes;
    (*result)["bytes_moved_modelled"] = ideal_bytes(plan.problem) + 2 * score_matrix_bytes(plan.problem);
  }
  return result;
}

}  // namespace

double flops_of(const Problem& p, double pairs) {
  const double d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.head_dim_v);
  return pairs * (p.direction == TILEWISE_BACKWARD ? 6 * d + 4 * dv : 2 * d + 2 * dv);
}

bool is_standard(const Plan& plan) {
  const Kernel* row = Registry::builtin().row(plan.kernel_index, plan.kernel);
  return row && row->standard;
}

std::vector<Alternative> alternatives(const Device& device, const Plan& plan) {
  std::vector<Alternative> list;
  const auto add = [&](const char* key, const char* label, bool standard) {
    Alternative other;
    other.key = key;
    other.label = label;
    if (const auto best = best_of(device, plan.problem, standard)) {
      other.plan = *best;
      other.needs_bytes = static_cast<double>(best->workspace_bytes);
    } else {
      other.not_run = best.status().message();
    }
    list.push_back(std::move(other));
  };
  if (is_standard(plan)) add("fused", "fused", false);
  add("standard_one_head", "standard, one head at a time", true);
  Alternative all;
  all.key = "standard_all_heads";
  all.label = "standard, all heads at once";
  all.needs_bytes = all_heads_bytes(plan.problem);
  all.not_run = list.back().not_run;
  all.plan = list.back().plan;
  all.all_heads = true;
  if (all.plan && plan.problem.direction == TILEWISE_FORWARD)
    all.needs_bytes = static_cast<double>(
        row_of(*all.plan)->scratch_bytes(*row_of(*all.plan), plan.problem, all_heads_schedule(*all.plan)));
  else if (all.plan)
    all.not_run = "only forward is run this way";
  list.push_back(std::move(all));
  return list;
}

Expected<Json> run_measured(const Device& device, const Plan& plan, const Tensors& tensors, double pairs,
                            MeasureBudget budget) {
  if (Status s = prepare(device.context(), plan); !s) return s;
  std::optional<Workspace> workspace;
  return measured(
      plan, pairs, budget, [&] { workspace.emplace(plan); },
      [&] { return run_once(device, plan, tensors, *workspace); });
}

Json run_alternative(const Device& device, const Alternative& other, const Tensors& tensors,
                     const ForwardParams& params, double pairs, MeasureBudget budget) {
  Json result = {{"label", other.label}};
  std::string why = other.not_run;
  const double available = static_cast<double>(available_memory());
  if (other.needs_bytes > 0.9 * available)
    why = "needs " + bytes_text(other.needs_bytes) + ", " + bytes_text(available) + " free";
  if (why.empty()) {
    const auto run = other.all_heads ? run_all_heads(device, *other.plan, params, pairs, budget)
                                     : run_measured(device, *other.plan, tensors, pairs, budget);
    if (run) {
      result.update(*run);
      return result;
    }
    why = run.status().message();
  }
  result["not_run"] = why;
  result["needs_bytes"] = other.needs_bytes;
  return result;
}

Json describe(const Problem& p) {
  const auto type = [](int32_t dtype) { return name_of(static_cast<DType>(dtype)); };
  Json j = {{"text", p.to_string()},      {"dtype", type(p.dtype_q)}, {"batch", p.batch},
            {"heads_q", p.heads_q},       {"heads_kv", p.heads_kv},   {"head_dim", p.head_dim},
            {"head_dim_v", p.head_dim_v}, {"seqlen_q", p.seqlen_q},   {"seqlen_kv", p.seqlen_kv},
            {"causal", p.causal != 0}};
  if (p.window_left >= 0 || p.window_right >= 0) j["window"] = {p.window_left, p.window_right};
  if (p.packed_q) j["total_q"] = p.total_q;
  if (p.packed_kv) j["total_kv"] = p.total_kv;
  return j;
}

}  // namespace tilewise::cli
