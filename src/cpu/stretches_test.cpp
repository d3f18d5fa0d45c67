#include "cpu/stretches.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tilewise::cpu {
namespace {

// Seven tasks of two workers: each walks its own in order, then helps.
TEST(Stretches, AWorkerWalksItsOwnTasksFirst) {
  Stretches tasks(7, 2);
  EXPECT_EQ(tasks.next(1), 3);
  EXPECT_EQ(tasks.next(0), 0);
  EXPECT_EQ(tasks.next(1), 4);
  EXPECT_EQ(tasks.next(1), 5);
  EXPECT_EQ(tasks.next(1), 6);
  EXPECT_EQ(tasks.next(1), 1);
  EXPECT_EQ(tasks.next(0), 2);
  EXPECT_EQ(tasks.next(0), -1);
  EXPECT_EQ(tasks.next(1), -1);
}

TEST(Stretches, MoreWorkersThanTasksOrStretches) {
  for (int workers : {5, 200}) {
    Stretches tasks(3, workers);
    std::vector<int> seen(3);
    for (int i = 0; i < 3; ++i) {
      const int64_t task = tasks.next(workers - 1 - i);
      ASSERT_GE(task, 0);
      ASSERT_LT(task, 3);
      ++seen[static_cast<size_t>(task)];
    }
    EXPECT_EQ(seen, (std::vector<int>{1, 1, 1})) << workers;
    EXPECT_EQ(tasks.next(0), -1);
  }
}

TEST(Stretches, ThreadsTakeEveryTaskOnce) {
  constexpr int kTasks = 5000, kWorkers = 4;
  Stretches tasks(kTasks, kWorkers);
  std::vector<std::atomic<int>> seen(kTasks);
  std::vector<std::thread> threads;
  for (int w = 0; w < kWorkers; ++w)
    threads.emplace_back([&, w] {
      for (int64_t task = tasks.next(w); task >= 0; task = tasks.next(w)) ++seen[static_cast<size_t>(task)];
    });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kTasks; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], 1) << i;
}

}  // namespace
}  // namespace tilewise::cpu
