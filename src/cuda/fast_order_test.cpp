#include "cuda/tile/fast_order.cuh"

#include <gtest/gtest.h>

#include "cuda/packed_heads.h"

namespace tilewise::tile {
namespace {

TEST(FastDivide, IsDivision) {
  for (const int by : {1, 2, 3, 5, 7, 12, 127, 128, 129, 1000, 65535, 65536, (1 << 30) - 1, 1 << 30}) {
    const FastDivide fast(by);
    for (const int n : {0, 1, by - 1, by, by + 1, 1000003, (1 << 30) + 7, 0x7fffffff})
      EXPECT_EQ(fast.divide(n), n / by) << n << " by " << by;
    int rest = 1000003;
    EXPECT_EQ(fast.split(rest), 1000003 / by);
    EXPECT_EQ(rest, 1000003 % by);
  }
}

TEST(FastOrder, FindsWhatTheOrderFinds) {
  for (const int tiles : {1, 2, 3, 8}) {
    for (const int heads : {1, 5, 16}) {
      for (const int batch : {1, 3}) {
        for (const int group : {1, 4, 7, 48}) {
          for (const int last_first : {0, 1}) {
            Order order(tiles, heads, batch);
            order.group = std::min(group, order.all_heads);
            order.last_first = last_first;
            const FastOrder fast(order);
            for (int i = 0; i < order.total; ++i) {
              int want[3], got[3];
              order.find(i, want[0], want[1], want[2]);
              fast.find(i, got[0], got[1], got[2]);
              for (int k = 0; k < 3; ++k) ASSERT_EQ(got[k], want[k]) << i << " of " << order.total;
            }
          }
        }
      }
    }
  }
}

// Few queries of many heads fill tiles together; many do not, and a head alone never.
TEST(PackedHeads, TheFewestTiles) {
  const auto pack = [](int64_t queries, int64_t group) {
    const cuda::PackedHeads p = cuda::pack_heads(queries, group, 128);
    return std::pair(1 << p.rows_log2, p.tiles_m * p.packs);
  };
  EXPECT_EQ(pack(16, 8), std::pair(16, int64_t{1}));
  EXPECT_EQ(pack(32, 8), std::pair(32, int64_t{2}));
  EXPECT_EQ(pack(64, 8), std::pair(64, int64_t{4}));
  EXPECT_EQ(pack(128, 8), std::pair(128, int64_t{8}));
  EXPECT_EQ(pack(4096, 8), std::pair(128, int64_t{256}));
  EXPECT_EQ(pack(16, 1), std::pair(128, int64_t{1}));
  EXPECT_EQ(pack(300, 1), std::pair(128, int64_t{3}));
  EXPECT_EQ(pack(20, 7), std::pair(32, int64_t{2}));
}

}  // namespace
}  // namespace tilewise::tile
