// ThreadPool: persistent threads behind Executor. Idle threads spin for some 50 us, then sleep. Started
// lazily, and again in the child of a fork(). A call from inside a task, or while another host thread's call
// is running, runs on the calling thread alone: never a deadlock, and the same result by Executor's contract.
//
// One 64-bit word, the gate, opens and closes a job: [job number : 32][open : 1][workers inside : 31]. A
// worker enters by compare-exchange while the gate is open; the caller works too, closes the gate when no
// index is left and waits until nobody is inside. A worker that wakes too late finds the gate closed: nobody
// waits for sleepers.
#ifndef TILEWISE_CPU_THREADS_H_
#define TILEWISE_CPU_THREADS_H_

#include <atomic>
#include <cstdint>

#include "core/executor.h"

namespace tilewise {

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {}
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int workers() const override { return threads_; }
  // Starts the threads now instead of in the first call. Fewer may start than asked for (a process limit).
  void start();
  void parallel_for(int64_t count, int workers, tilewise_task task, void* data) override;

 private:
  struct Crew;
  Crew* crew();  // this process's

  const int threads_;
  std::atomic<Crew*> crew_{nullptr};
};

// The caller's parallel_for as an Executor.
class CallerExecutor final : public Executor {
 public:
  CallerExecutor(int workers, tilewise_parallel_for function, void* user)
      : workers_(workers < 1 ? 1 : workers), function_(function), user_(user) {}
  int workers() const override { return workers_; }
  void parallel_for(int64_t count, int workers, tilewise_task task, void* data) override;

 private:
  int workers_;
  tilewise_parallel_for function_;
  void* user_;
};

}  // namespace tilewise
#endif  // TILEWISE_CPU_THREADS_H_
