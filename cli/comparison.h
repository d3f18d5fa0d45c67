// Runs that are measured: time, FLOP/s, memory; and the same problem done in three steps, for comparison.
#ifndef TILEWISE_CLI_COMPARISON_H_
#define TILEWISE_CLI_COMPARISON_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/device.h"
#include "cli/picture.h"
#include "core/params.h"

namespace tilewise::cli {

double flops_of(const Problem& problem, double visible_pairs);
bool is_standard(const Plan& plan);

// A way to do the problem, with scratch of its own, ready to be run again and again.
class MeasuredCall {
 public:
  // The plan as the library runs it. `device` and `tensors` outlive it.
  static MeasuredCall of_plan(const Device& device, const Plan& plan, const Tensors& tensors);
  // A three-step plan with the scores of all heads held at once: what a framework without fusion allocates.
  // Kind to it in one thing: a head's three steps follow each other while its scores are near.
  static MeasuredCall all_heads(const Device& device, const Plan& plan, const ForwardParams& params);

  // Allocates and runs for the first time, while memory is watched.
  Status start();
  Status run_timed();
  double first_seconds() const { return first_seconds_; }
  // Keys: kernel, ms_min, ms_median, ms_max, runs, tflops, workspace_bytes, ...
  Json result(double visible_pairs) const;

 private:
  void run_on_cuda(const Device& device, const Tensors& tensors, std::shared_ptr<Workspace> workspace);

  Plan plan_;
  const char* chosen_by_ = "";
  int64_t scratch_bytes_ = 0;
  double bytes_moved_ = 0;
  std::function<Status()> allocate_, once_;
  std::function<Expected<double>()> timed_;  // milliseconds by the device's clock; null: once_ by the wall's
  double first_seconds_ = 0;
  int64_t extra_bytes_ = -1, peak_bytes_ = 0;  // -1: the system does not tell
  std::vector<double> ms_;
};

// Runs in turns, so that what disturbs the machine disturbs all alike, until `seconds` are spent or each has
// run 15 times. A call whose first run took more than half a second keeps that as its only one.
Status time_in_turns(const std::vector<MeasuredCall*>& calls, double seconds);

// Another way to do a plan's problem; without a call, with the reason and what it would need.
struct Alternative {
  std::string key, label;  // "standard_one_head", "standard, one head at a time"
  std::optional<MeasuredCall> call;
  std::string not_run;
  double needs_bytes = 0;
};

// Three steps one head at a time, three steps over all heads at once and, where the plan itself is
// three-step, the best fused kernel.
std::vector<Alternative> alternatives(const Device& device, const Plan& plan, const Tensors& tensors,
                                      const ForwardParams& params);

// Problem in words and numbers, keyed as `bench --json` does.
Json describe(const Problem& problem);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_COMPARISON_H_
