#include "tune/work.h"

#include <gtest/gtest.h>

#include "core/cost.h"
#include "tune/problem_data.h"

namespace tilewise::tune {
namespace {

// The definition in docs/conventions.md, pair by pair.
int64_t pairs_by_definition(const Problem& p) {
  const int64_t offset = p.position == TILEWISE_TOP_LEFT ? 0 : p.seqlen_kv - p.seqlen_q;
  const int64_t right = p.causal ? 0 : p.window_right;
  int64_t pairs = 0;
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    for (int64_t j = 0; j < p.seqlen_kv; ++j) {
      const int64_t position = i + offset;
      if (p.window_left >= 0 && j < position - p.window_left) continue;
      if (right >= 0 && j > position + right) continue;
      ++pairs;
    }
  }
  return pairs;
}

TEST(Work, VisiblePairsAreThoseOfTheDefinition) {
  int checked = 0;
  for (int64_t q : {1, 2, 7, 16, 33}) {
    for (int64_t kv : {1, 3, 16, 31, 64}) {
      for (Position position : {Position::bottom_right, Position::top_left}) {
        for (bool causal : {false, true}) {
          for (int64_t left : {-1, 0, 1, 5, 100}) {
            for (int64_t right : {-1, 0, 2, 100}) {
              ProblemSize size;
              size.seqlen_q = q, size.seqlen_kv = kv, size.causal = causal, size.position = position;
              size.window_left = left, size.window_right = right;
              const Problem p = make_problem(size);
              ASSERT_EQ(visible_pairs_per_head(p), static_cast<double>(pairs_by_definition(p)))
                  << "q " << q << " kv " << kv << " causal " << causal << " window " << left << "," << right
                  << (position == Position::top_left ? " top-left" : " bottom-right");
              ++checked;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(checked, 5 * 5 * 2 * 2 * 5 * 4);
}

TEST(Work, FlopsCountFourDAPairAndHalfForACausalSquare) {
  ProblemSize size;  // 1 x 1024 x 12 heads, d 64
  const double full = 4.0 * 64 * 1024 * 1024 * 12;
  EXPECT_EQ(flops_of(make_problem(size)), full);
  size.causal = true;
  EXPECT_EQ(flops_of(make_problem(size)), full / 2);
  size.direction = Direction::backward;
  EXPECT_EQ(flops_of(make_problem(size)), 2.5 * full / 2);
  size.batch = 3;
  EXPECT_EQ(flops_of(make_problem(size)), 3 * 2.5 * full / 2);
}

TEST(Work, FlopsOfRectanglesAndWindowsCountVisiblePairs) {
  ProblemSize size;
  size.seqlen_q = 10, size.seqlen_kv = 100, size.causal = true, size.heads_q = 1, size.heads_kv = 1;
  const Problem rectangle = make_problem(size);
  EXPECT_EQ(flops_of(rectangle), 4.0 * 64 * static_cast<double>(pairs_by_definition(rectangle)));
  size.seqlen_q = 100, size.window_left = 7;
  const Problem window = make_problem(size);
  EXPECT_EQ(flops_of(window), 4.0 * 64 * static_cast<double>(pairs_by_definition(window)));
}

TEST(Work, ADifferentHeadDimOfVCountsInItsOwnProducts) {
  ProblemSize size;
  size.head_dim = 192, size.head_dim_v = 128, size.heads_q = 1, size.heads_kv = 1;
  const double pairs = 1024.0 * 1024.0;
  EXPECT_EQ(flops_of(make_problem(size)), pairs * 2 * (192 + 128));
  size.direction = Direction::backward;
  EXPECT_EQ(flops_of(make_problem(size)), pairs * 2 * (3 * 192 + 2 * 128));
}

TEST(Work, IdealBytesAreEachTensorOnce) {
  ProblemSize size;
  size.batch = 2, size.heads_q = 8, size.heads_kv = 2, size.head_dim = 32, size.head_dim_v = 48;
  size.seqlen_q = 10, size.seqlen_kv = 20, size.dtype = DType::bf16;
  const double q = 2.0 * 10 * 8 * 32, o = 2.0 * 10 * 8 * 48, k = 2.0 * 20 * 2 * 32, v = 2.0 * 20 * 2 * 48;
  EXPECT_EQ(ideal_bytes(make_problem(size)), 2 * (q + o + k + v));
  size.direction = Direction::backward;
  EXPECT_EQ(ideal_bytes(make_problem(size)), 2 * (2 * q + 2 * o + 2 * k + 2 * v) + 4 * 2.0 * 10 * 8);
}

}  // namespace
}  // namespace tilewise::tune
