#include "plan/plan_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "plan/made_up.h"

namespace tilewise {
namespace {

tilewise_plan plan_of(int64_t seqlen) {
  tilewise_plan plan{};
  plan.struct_bytes = sizeof plan;
  plan.problem = made_up::problem(seqlen);
  plan.workspace_bytes = seqlen;
  return plan;
}

TEST(PlanCache, BoundedAndLeastRecentlyUsedGoesFirst) {
  PlanCache cache;
  tilewise_plan found;
  for (int64_t i = 0; i < 64; ++i) cache.store(plan_of(i));
  EXPECT_TRUE(cache.find(made_up::problem(0), TILEWISE_CPU, 0, &found));  // now the newest
  for (int64_t i = 64; i < 100; ++i) cache.store(plan_of(i));
  EXPECT_EQ(cache.size(), PlanCache::kCapacity);
  EXPECT_TRUE(cache.find(made_up::problem(0), TILEWISE_CPU, 0, &found));
  EXPECT_EQ(found.workspace_bytes, 0);
  EXPECT_FALSE(cache.find(made_up::problem(1), TILEWISE_CPU, 0, &found));
  EXPECT_TRUE(cache.find(made_up::problem(99), TILEWISE_CPU, 0, &found));
  EXPECT_EQ(found.workspace_bytes, 99);
}

TEST(PlanCache, KeysByFieldsNotByPadding) {
  PlanCache cache;
  const Problem clean = made_up::problem(8);
  tilewise_plan plan = plan_of(8);
  cache.store(plan);
  tilewise_plan found;
  Problem nan = clean;
  nan.softmax_scale = -std::nanf("7");  // another NaN is the same default
  EXPECT_TRUE(cache.find(nan, TILEWISE_CPU, 0, &found));
  Problem other = clean;
  other.window_left = 3;
  EXPECT_FALSE(cache.find(other, TILEWISE_CPU, 0, &found));
  EXPECT_FALSE(cache.find(nan, TILEWISE_CUDA, 0, &found)) << "a plan of another device";
}

TEST(PlanCache, ManyThreads) {
  PlanCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 500; ++i) {
        tilewise_plan found;
        if (cache.find(made_up::problem((i * 7 + t) % 90), TILEWISE_CPU, 0, &found)) {
          EXPECT_EQ(found.workspace_bytes, (i * 7 + t) % 90);
        } else {
          cache.store(plan_of((i * 7 + t) % 90));
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_LE(cache.size(), PlanCache::kCapacity);
}

}  // namespace
}  // namespace tilewise
