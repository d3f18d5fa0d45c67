#include "cpu/forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tilewise::cpu {
namespace {

constexpr int kTileM = 64, kHeadDim = 64;

ForwardSizes sizes(int64_t heads, int64_t seqlen_q, int threads) {
  Schedule schedule;
  schedule.tile_m = kTileM;
  schedule.tile_n = 96;
  schedule.threads = threads;
  return ForwardSizes(1, heads, heads, seqlen_q, kHeadDim, kHeadDim, schedule);
}

TEST(ForwardTasks, EachQueryBlockIsInOneOfThem) {
  for (const int64_t heads : {1, 2, 5, 12}) {
    for (const int64_t blocks : {1, 2, 3, 7, 16, 17, 33, 64}) {
      for (const int threads : {1, 2, 3, 16}) {
        for (const bool longest_first : {false, true}) {
          const ForwardSizes s = sizes(heads, blocks * kTileM, threads);
          std::vector<int> times(static_cast<size_t>(heads * blocks));
          for (int64_t i = 0; i < s.tasks; ++i) {
            const ForwardSizes::Task t = s.task(i, longest_first);
            ASSERT_TRUE(t.head >= 0 && t.head < heads && t.first >= 0 && t.count >= 1 && t.count <= s.blocks);
            for (int64_t b = t.first; b < std::min(t.first + t.count, blocks); ++b)
              ++times[static_cast<size_t>(t.head * blocks + b)];
          }
          EXPECT_EQ(std::count(times.begin(), times.end(), 1), heads * blocks)
              << heads << " heads of " << blocks << " blocks, " << threads << " threads";
        }
      }
    }
  }
}

// 12 heads of 1024 rows on 2 threads: the one that is done first waits for a quarter of a head at most.
TEST(ForwardTasks, TheLastOnesAreShort) {
  const ForwardSizes s = sizes(12, 1024, 2);
  EXPECT_EQ(s.task(0, false).count, 16);
  for (int64_t i = s.tasks - 8; i < s.tasks; ++i) EXPECT_EQ(s.task(i, false).count, 4);
  EXPECT_EQ(sizes(12, 1024, 1).tasks, 12);  // one thread waits for nobody
}

// 12 heads of 2048 rows under a causal mask: the second halves, which see three quarters of the pairs, come
// before the first halves.
TEST(ForwardTasks, TheLongestComeFirst) {
  const ForwardSizes s = sizes(12, 2048, 1);
  ASSERT_EQ(s.tasks, 24);
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(s.task(i, true).first, i < 12 ? 16 : 0);
}

}  // namespace
}  // namespace tilewise::cpu
