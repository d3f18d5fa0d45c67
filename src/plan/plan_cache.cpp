#include "plan/plan_cache.h"

#include <algorithm>

#include "core/problem_fields.h"

namespace tilewise {

bool PlanCache::find(const tilewise_problem& problem, tilewise_plan* plan) {
  const uint64_t hash = problem_hash(problem);
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.hash == hash && problem_equal(entry.plan.problem, problem)) {
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
    if (entry.hash == hash && problem_equal(entry.plan.problem, plan.problem)) {
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
