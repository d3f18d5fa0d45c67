#include "cpu/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace tilewise {
namespace {

// Runs `count` tasks; checks that each ran once, and never two at once with one worker number.
void check_job(Executor& executor, int64_t count, int workers) {
  std::vector<int> ran(static_cast<size_t>(count), 0);
  std::vector<std::atomic<int>> inside(static_cast<size_t>(std::max(1, workers)));
  executor.run(count, workers, [&](int64_t i, int worker) {
    ASSERT_GE(worker, 0);
    ASSERT_LT(worker, std::max(1, workers));
    EXPECT_EQ(inside[static_cast<size_t>(worker)].fetch_add(1), 0);
    ++ran[static_cast<size_t>(i)];
    inside[static_cast<size_t>(worker)].fetch_sub(1);
  });
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(ran[static_cast<size_t>(i)], 1) << i;
}

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.workers(), threads);
    for (int64_t count : {0, 1, 2, 3, 100, 1000}) {
      for (int workers : {0, 1, 2, threads, threads + 5}) check_job(pool, count, workers);
    }
  }
}

TEST(ThreadPool, ManySmallJobsInARow) {
  ThreadPool pool(4);
  int64_t sum = 0;
  for (int job = 0; job < 5000; ++job) {
    std::atomic<int64_t> part{0};
    pool.run(7, 4, [&](int64_t i, int) { part.fetch_add(i, std::memory_order_relaxed); });
    sum += part.load();
    if (job % 1000 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lets the crew fall asleep
  }
  EXPECT_EQ(sum, 5000 * 21);
}

TEST(ThreadPool, WritesOfTasksAreSeenByTheCaller) {
  ThreadPool pool(3);
  std::vector<int64_t> values(10000);  // plain memory: ThreadSanitizer checks the hand-over
  for (int64_t round = 1; round <= 20; ++round) {
    pool.run(100, 3, [&](int64_t i, int) {
      for (size_t j = 0; j < 100; ++j) values[static_cast<size_t>(i) * 100 + j] = round;
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 10000 * round);
  }
}

TEST(ThreadPool, NestedCallsRunInline) {
  ThreadPool pool(4);
  std::atomic<int64_t> sum{0};
  pool.run(8, 4, [&](int64_t, int) {
    pool.run(10, 4, [&](int64_t i, int worker) {
      EXPECT_EQ(worker, 0);
      sum.fetch_add(i);
    });
  });
  EXPECT_EQ(sum.load(), 8 * 45);
}

TEST(ThreadPool, ManyHostThreads) {
  ThreadPool pool(3);
  std::vector<std::thread> hosts;
  std::atomic<int64_t> sum{0};
  for (int t = 0; t < 5; ++t) {
    hosts.emplace_back([&] {
      for (int job = 0; job < 200; ++job) pool.run(20, 3, [&](int64_t i, int) { sum.fetch_add(i); });
    });
  }
  for (auto& host : hosts) host.join();
  EXPECT_EQ(sum.load(), 5 * 200 * 190);
}

TEST(ThreadPool, IdleThreadsSleep) {
  ThreadPool pool(4);
  check_job(pool, 100, 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto cpu_seconds = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  };
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.02);
}

// ThreadSanitizer cannot follow threads that a forked child starts, and qemu-user cannot start them.
#if defined(__SANITIZE_THREAD__) || defined(TILEWISE_EMULATED)
constexpr bool kForkWorks = false;
#else
constexpr bool kForkWorks = true;
#endif

TEST(ThreadPool, WorksAfterFork) {
  if (!kForkWorks) GTEST_SKIP();
  ThreadPool pool(3);
  check_job(pool, 50, 3);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> ran{0};
    for (int job = 0; job < 10; ++job) pool.run(50, 3, [&](int64_t, int) { ran.fetch_add(1); });
    _exit(ran.load() == 500 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  check_job(pool, 50, 3);
}

TEST(ThreadPool, ADestroyedPoolInAChildDoesNotWaitForTheParentsThreads) {
  if (!kForkWorks) GTEST_SKIP();
  auto pool = std::make_unique<ThreadPool>(3);
  check_job(*pool, 50, 3);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pool.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(CallerExecutor, HandsTheTasksOver) {
  struct Calls {
    int jobs = 0;
  } calls;
  CallerExecutor executor(
      4,
      [](void* user, int64_t count, int32_t workers, tilewise_task task, void* data) {
        ++static_cast<Calls*>(user)->jobs;
        for (int64_t i = 0; i < count; ++i) task(data, i, static_cast<int32_t>(i % workers));
      },
      &calls);
  check_job(executor, 10, 4);
  EXPECT_EQ(calls.jobs, 1);
  check_job(executor, 1, 4);  // one task needs no help
  EXPECT_EQ(calls.jobs, 1);
}

}  // namespace
}  // namespace tilewise
