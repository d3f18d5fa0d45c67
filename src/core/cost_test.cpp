#include "core/cost.h"

#include <gtest/gtest.h>

namespace tilewise {
namespace {

TEST(Cost, VisiblePairsAreThoseThatLoopsCount) {
  for (int64_t sq : {0, 1, 3, 6}) {
    for (int64_t skv : {0, 1, 4, 6, 9}) {
      for (int64_t left : {-1, 0, 2, 20}) {
        for (int64_t right : {-1, 0, 1, 20}) {
          for (int position : {TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT}) {
            Problem p;
            p.batch = 1;
            p.heads_q = p.heads_kv = p.head_dim = p.head_dim_v = 1;
            p.seqlen_q = sq;
            p.seqlen_kv = skv;
            p.window_left = left;
            p.window_right = right;
            p.position = position;
            const int64_t offset = position == TILEWISE_TOP_LEFT ? 0 : skv - sq;
            double pairs = 0;
            for (int64_t i = 0; i < sq; ++i) {
              for (int64_t j = 0; j < skv; ++j) {
                const int64_t at = i + offset;
                pairs += (left < 0 || j >= at - left) && (right < 0 || j <= at + right);
              }
            }
            EXPECT_EQ(visible_pairs(p), pairs) << p.to_string();
          }
        }
      }
    }
  }
}

TEST(Cost, PackedProblemsHoldNoMoreFullSequencesThanTheTotalAllows) {
  Problem p;
  p.batch = 10;
  p.heads_q = p.heads_kv = 1;
  p.head_dim = p.head_dim_v = 4;
  p.packed_q = p.packed_kv = 1;
  p.seqlen_q = p.seqlen_kv = 100;
  p.total_q = p.total_kv = 200;
  EXPECT_EQ(visible_pairs(p), 2 * 100.0 * 100.0);
  EXPECT_EQ(operations(p), 2 * 100.0 * 100.0 * 16);
}

}  // namespace
}  // namespace tilewise
