#include "cpu/threads.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(_WIN32)
#include <process.h>
#else
#include <unistd.h>
#include <csignal>
#endif

namespace tilewise {
namespace {

constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInside = kOpen - 1;
constexpr auto kSpin = std::chrono::microseconds(50);

uint64_t job_of(uint64_t gate) { return gate >> 32; }

int process_id() {
#if defined(_WIN32)
  return _getpid();
#else
  return static_cast<int>(getpid());
#endif
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Threads inherit the mask of the one that starts them.
class BlockedSignals {
 public:
#if defined(_WIN32)
  BlockedSignals() {}
#else
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
#endif
};

void run_inline(int64_t count, tilewise_task task, void* data) {
  for (int64_t i = 0; i < count; ++i) task(data, i, 0);
}

}  // namespace

// The threads of one process and the job they are at.
struct ThreadPool::Crew {
  const int process = process_id();
  std::atomic<bool> busy{false};
  std::atomic<uint64_t> gate{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> threads;

  // The job: written while the gate is closed and nobody is inside.
  tilewise_task task = nullptr;
  void* data = nullptr;
  int64_t count = 0;
  int workers = 0;
  std::atomic<int64_t> next{0};
  std::atomic<int> next_worker{0};

  explicit Crew(int helpers) {
    const BlockedSignals blocked;  // the program's handlers run on its own threads
    try {
      threads.reserve(static_cast<size_t>(helpers));
      for (int i = 0; i < helpers; ++i) threads.emplace_back([this] { live(); });
    } catch (const std::exception&) {
      // No more threads or memory to be had: those that started, and the caller, do the work.
    }
  }

  ~Crew() {
    {
      std::lock_guard lock(mutex);
      stop.store(true);
    }
    wake.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void work(int worker) {
    for (;;) {
      const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      task(data, i, worker);
    }
  }

  // Enters the open job, works, leaves.
  bool enter(uint64_t seen) {
    if (!gate.compare_exchange_strong(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return false;
    const int worker = next_worker.fetch_add(1, std::memory_order_relaxed);
    if (worker < workers) work(worker);
    gate.fetch_sub(1, std::memory_order_release);
    return true;
  }

  void live() {
    uint64_t last_job = 0;
    auto since = std::chrono::steady_clock::now();
    for (int spins = 0;; ++spins) {
      const uint64_t seen = gate.load(std::memory_order_relaxed);
      if ((seen & kOpen) && job_of(seen) != last_job) {
        if (!enter(seen)) continue;  // another worker came or the job was closed: look again
        last_job = job_of(seen);
        since = std::chrono::steady_clock::now();
        continue;
      }
      if (stop.load(std::memory_order_relaxed)) return;
      pause();
      if (spins % 64 != 0 || std::chrono::steady_clock::now() - since < kSpin) continue;
      sleep(last_job);
      since = std::chrono::steady_clock::now();
    }
  }

  // The sleeper counts itself, then looks at the gate; the caller opens the gate, then looks at the count: in
  // the total order of these four, one of the two sees the other.
  void sleep(uint64_t last_job) {
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    wake.wait(lock, [&] {
      const uint64_t seen = gate.load(std::memory_order_seq_cst);
      return stop.load() || ((seen & kOpen) && job_of(seen) != last_job);
    });
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }

  void run(int64_t n, int w, tilewise_task job, void* job_data) {
    task = job;
    data = job_data;
    count = n;
    workers = w;
    next.store(0, std::memory_order_relaxed);
    next_worker.store(1, std::memory_order_relaxed);
    const uint64_t number = (job_of(gate.load(std::memory_order_relaxed)) + 1) & 0xffffffffu;
    gate.store((number << 32) | kOpen, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) > 0) {
      { std::lock_guard lock(mutex); }
      if (w - 1 < sleepers.load(std::memory_order_relaxed)) {
        for (int i = 1; i < w; ++i) wake.notify_one();
      } else {
        wake.notify_all();
      }
    }
    work(0);
    gate.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int spins = 0; (gate.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
      if (spins < 4096) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }
};

ThreadPool::Crew* ThreadPool::crew() {
  Crew* crew = crew_.load(std::memory_order_acquire);
  if (crew && crew->process == process_id()) return crew;
  // First use, or first use after fork(): the parent's threads, and locks that they may have held, stay
  // behind.
  auto* fresh = new (std::nothrow) Crew(threads_ - 1);
  if (!fresh) return nullptr;
  if (crew_.compare_exchange_strong(crew, fresh, std::memory_order_acq_rel)) return fresh;
  delete fresh;
  return crew;
}

ThreadPool::~ThreadPool() {
  Crew* crew = crew_.load();
  if (crew && crew->process == process_id()) delete crew;  // in a forked child there is nobody to join
}

void ThreadPool::start() {
  if (threads_ > 1) (void)crew();
}

void ThreadPool::parallel_for(int64_t count, int workers, tilewise_task task, void* data) {
  workers = static_cast<int>(std::min<int64_t>({workers, threads_, count}));
  if (workers <= 1) return run_inline(count, task, data);
  Crew* c = crew();
  if (!c || c->busy.exchange(true, std::memory_order_acquire)) return run_inline(count, task, data);
  c->run(count, workers, task, data);
  c->busy.store(false, std::memory_order_release);
}

void CallerExecutor::parallel_for(int64_t count, int workers, tilewise_task task, void* data) {
  workers = static_cast<int>(std::min<int64_t>({workers, workers_, count}));
  if (workers <= 1) return run_inline(count, task, data);
  function_(user_, count, workers, task, data);
}

}  // namespace tilewise
