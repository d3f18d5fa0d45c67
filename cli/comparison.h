// Runs that are measured: time, FLOP/s, memory; and the same problem done in three steps, for comparison.
#ifndef TILEWISE_CLI_COMPARISON_H_
#define TILEWISE_CLI_COMPARISON_H_

#include <optional>
#include <string>
#include <vector>

#include "cli/device.h"
#include "cli/picture.h"
#include "core/params.h"

namespace tilewise::cli {

struct MeasureBudget {
  double seconds = 1.0;  // of all runs together, the warm-up included
  int most_runs = 15;
};

double flops_of(const Problem& problem, double visible_pairs);

// Runs a plan: a warm-up, during which memory is measured, then runs until the budget is spent. Where one run
// takes more than half of it, that run is the measurement. Keys: kernel, ms_min, ms_median, ms_max, runs, ...
Expected<Json> run_measured(const Device& device, const Plan& plan, const Tensors& tensors,
                            double visible_pairs, MeasureBudget budget);

// Another way to do a plan's problem. Without a plan it is listed with the reason and what it would need.
struct Alternative {
  std::string key, label;  // "standard_one_head", "standard, one head at a time"
  std::optional<Plan> plan;
  std::string not_run;
  double needs_bytes = 0;
  bool all_heads = false;
};

// Three steps one head at a time, three steps over all heads at once and, where the plan itself is
// three-step, the best fused kernel.
std::vector<Alternative> alternatives(const Device& device, const Plan& plan);
// Measured like the plan where memory allows; else {label, not_run, needs_bytes}.
Json run_alternative(const Device& device, const Alternative& other, const Tensors& tensors,
                     const ForwardParams& params, double visible_pairs, MeasureBudget budget);
bool is_standard(const Plan& plan);

// Problem in words and numbers, keyed as `bench --json` does.
Json describe(const Problem& problem);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_COMPARISON_H_
