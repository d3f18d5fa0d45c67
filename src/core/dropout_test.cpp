// The dropout mask is a contract: golden values, the same on every backend and in every version.
#include "core/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tilewise {
namespace {

struct Golden {
  uint64_t seed, offset;
  int64_t batch, head, row;
  float p;
  uint64_t kept;  // bit j: key j is kept
};

uint64_t kept_keys(const Golden& g) {
  uint64_t bits = 0;
  const DropoutRow row = dropout_row(g.seed, g.offset, g.batch, g.head, g.row);
  for (int64_t j = 0; j < 64; ++j) {
    if (dropout_keep(row, j, dropout_threshold_of(g.p))) bits |= uint64_t{1} << j;
  }
  return bits;
}

TEST(Dropout, GoldenValues) {
  const Golden golden[] = {
      {0u, 0u, 0, 0, 0, 0.50f, 0x71bade1f5288736au},
      {0u, 0u, 0, 0, 1, 0.50f, 0xc80a72d34faa8ccau},
      {0u, 0u, 0, 1, 0, 0.50f, 0x7666f3f92c543349u},
      {0u, 0u, 1, 0, 0, 0.50f, 0x91d60b410619273cu},
      {0u, 0x1u, 0, 0, 0, 0.50f, 0xc2add4f994f6a63bu},
      {0x1u, 0u, 0, 0, 0, 0.50f, 0xd94812d1a7fd92b6u},
      {0x2au, 0u, 0, 0, 0, 0.10f, 0xddfffeffbfbb7fffu},
      {0x2au, 0u, 0, 0, 0, 0.90f, 0x0000003008010200u},
      {0xffffffffffffffffu, 0xffffffffffffffffu, 65535, 127, 8589934597, 0.30f, 0x938ed57ff57c6fc7u},
      {0x11f71fb04cbu, 0x4du, 3, 11, 4095, 0.25f, 0xe7fb7bf75f4eafcdu},
  };
  for (const Golden& g : golden) {
    EXPECT_EQ(kept_keys(g), g.kept) << "seed " << g.seed << " offset " << g.offset << " batch " << g.batch
                                    << " head " << g.head << " row " << g.row << " p " << g.p;
  }
}

TEST(Dropout, ExtremesKeepAllOrNothing) {
  const DropoutRow row = dropout_row(1, 2, 3, 4, 5);
  for (int64_t j = 0; j < 1000; ++j) {
    EXPECT_TRUE(dropout_keep(row, j, dropout_threshold_of(0.0f)));
    EXPECT_FALSE(dropout_keep(row, j, dropout_threshold_of(1.0f)));
  }
  EXPECT_EQ(dropout_scale_of(dropout_threshold_of(0.0f)), 1.0f);
  EXPECT_EQ(dropout_scale_of(dropout_threshold_of(0.5f)), 2.0f);
  EXPECT_EQ(dropout_scale_of(dropout_threshold_of(1.0f)), 0.0f);
}

// Share kept over many keys, and of neighbours in each direction kept together, within five sigma.
TEST(Dropout, SharesAreThoseOfIndependentDraws) {
  constexpr int64_t kRows = 400, kKeys = 500;
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    const uint32_t threshold = dropout_threshold_of(p);
    const double keep = 1.0 - threshold / 65536.0;
    double kept = 0, key_pairs = 0, row_pairs = 0, head_pairs = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      const DropoutRow row = dropout_row(42, 7, 0, 0, i), below = dropout_row(42, 7, 0, 0, i + 1),
                       head = dropout_row(42, 7, 0, 1, i);
      for (int64_t j = 0; j < kKeys; ++j) {
        const bool here = dropout_keep(row, j, threshold);
        kept += here;
        key_pairs += here && dropout_keep(row, j + 1, threshold);
        row_pairs += here && dropout_keep(below, j, threshold);
        head_pairs += here && dropout_keep(head, j, threshold);
      }
    }
    constexpr double kCount = kRows * kKeys;
    const auto near = [&](double sum, double share) {
      // Pairs overlap, which at most doubles the variance.
      EXPECT_NEAR(sum / kCount, share, 5.0 * std::sqrt(2.0 * share * (1.0 - share) / kCount)) << "p " << p;
    };
    near(kept, keep);
    near(key_pairs, keep * keep);
    near(row_pairs, keep * keep);
    near(head_pairs, keep * keep);
  }
}

}  // namespace
}  // namespace tilewise
