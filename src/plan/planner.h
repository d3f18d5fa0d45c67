// The planner: validate, drop the kernels that refuse, then a forced kernel, a measured line or the cost
// model; fixes schedule and workspace. Pure: the same request gives the same answer. docs/api.md has the
// rules.
#ifndef TILEWISE_PLAN_PLANNER_H_
#define TILEWISE_PLAN_PLANNER_H_

#include <string>
#include <string_view>
#include <vector>

#include "plan/registry.h"
#include "plan/tuning.h"

namespace tilewise {

struct PlanRequest {
  const Registry& registry;
  const tilewise_problem& problem;
  const tilewise_device_info& device;
  int64_t max_workspace_bytes = -1;  // -1 = no limit
  int threads = 0;                   // 0 = the device's cores
  std::string_view forced = {};      // names, comma-separated (one a direction); "" = free choice
  const Tuning* tuning = nullptr;
};

// One row of the problem's direction, looked at.
struct Candidate {
  int index = -1;
  const Kernel* kernel = nullptr;
  std::string refusal;  // empty: it can run, and what follows is set
  Schedule schedule;
  Estimate estimate;
  int64_t workspace_bytes = 0;  // with the control block
  double rank_seconds = 0;  // predicted for all cores of the device: the choice must not hang on the threads
};

struct Choice {
  Status status;
  std::vector<Candidate> candidates;  // those that can run first, best first; then those that refuse
  bool from_tuning = false;
  int usable = 0;
};

Choice choose(const PlanRequest& request);
Status make_plan(const PlanRequest& request, tilewise_plan* plan);
// One line a kernel: rank, predicted time, bytes and workspace, or the rule that refused it; then notes.
std::string explain(const PlanRequest& request);

std::string print_problem(const tilewise_problem& problem);
std::string print_plan(const tilewise_plan& plan);
bool plan_equal(const tilewise_plan& a, const tilewise_plan& b);

const char* name_of(Target target);
// "avx2 scalar" for the bits of tilewise_isa.
std::string isa_text(uint64_t isa);
// "NVIDIA H200, 132 multiprocessors, compute capability 9.0"
std::string device_text(const tilewise_device_info& device);

}  // namespace tilewise
#endif  // TILEWISE_PLAN_PLANNER_H_
