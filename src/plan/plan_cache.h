// PlanCache: the last plans of the one-call form, by problem and device. Bounded, least recently used goes
// first; safe from many threads.
#ifndef TILEWISE_PLAN_PLAN_CACHE_H_
#define TILEWISE_PLAN_PLAN_CACHE_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "tilewise/c.h"

namespace tilewise {

class PlanCache {
 public:
  static constexpr size_t kCapacity = 64;

  bool find(const tilewise_problem& problem, int32_t device_kind, int32_t device_index, tilewise_plan* plan);
  void store(const tilewise_plan& plan);
  size_t size() const;

 private:
  struct Entry {
    uint64_t hash, used;
    tilewise_plan plan;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  uint64_t clock_ = 0;
};

}  // namespace tilewise
#endif  // TILEWISE_PLAN_PLAN_CACHE_H_
