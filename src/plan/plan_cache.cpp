#include "plan/plan_cache.h"

#include <algorithm>

#include "core/problem_fields.h"

namespace tilewise {

namespace {

bool serves(const tilewise_plan& plan, const tilewise_problem& problem, int32_t kind, int32_t index) {
  return plan.device_kind == kind && plan.device_index == index && problem_equal(plan.problem, problem);
}

}  // namespace

bool PlanCache::find(const tilewise_problem& problem, int32_t device_kind, int32_t device_index,
                     tilewise_plan* plan) {
  const uint64_t hash = problem_hash(problem);
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.hash == hash && serves(entry.plan, problem, device_kind, device_index)) {
      entry.used = ++clock_;
      *plan = entry.plan;
      return true;
    }
  }
  return false;
}

void PlanCache::store(const tilewise_plan& plan) {
  const uint64_t hash = problem_hash(plan.problem);
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.hash == hash && serves(entry.plan, plan.problem, plan.device_kind, plan.device_index)) {
      entry = {hash, ++clock_, plan};
      return;
    }
  }
  if (entries_.size() < kCapacity) {
    entries_.push_back({hash, ++clock_, plan});
    return;
  }
  *std::min_element(entries_.begin(), entries_.end(),
                    [](const Entry& a, const Entry& b) { return a.used < b.used; }) = {hash, ++clock_, plan};
}

size_t PlanCache::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace tilewise
