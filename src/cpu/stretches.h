// Which worker takes which task, where a task that follows its neighbour finds something prepared.
#ifndef TILEWISE_CPU_STRETCHES_H_
#define TILEWISE_CPU_STRETCHES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace tilewise::cpu {

// Tasks [0, tasks) in stretches, one for each worker, which takes its own in ascending order before it helps
// with the others'. Of form rows: a task's last tile asks memory for the first of the next task, and that is
// a gift only to whoever walks it.
class Stretches {
 public:
  Stretches(int64_t tasks, int workers) : count_(std::clamp(workers, 1, kMost)) {
    for (int i = 0; i < count_; ++i) {
      all_[i].next.store(tasks * i / count_, std::memory_order_relaxed);
      all_[i].end = tasks * (i + 1) / count_;
    }
  }

  // As many calls as there are tasks find one each; -1 to those after.
  int64_t next(int worker) {
    for (int i = worker % count_, tried = 0; tried < count_; ++tried, i = i + 1 < count_ ? i + 1 : 0) {
      if (all_[i].next.load(std::memory_order_relaxed) >= all_[i].end) continue;
      const int64_t task = all_[i].next.fetch_add(1, std::memory_order_relaxed);
      if (task < all_[i].end) return task;
    }
    return -1;
  }

 private:
  static constexpr int kMost = 64;  // more workers than that share
  struct alignas(64) Stretch {
    std::atomic<int64_t> next;
    int64_t end;
  };
  const int count_;
  Stretch all_[kMost];
};

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_STRETCHES_H_
