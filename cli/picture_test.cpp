#include "cli/picture.h"

#include <gtest/gtest.h>

#include "cli/attend_verify.h"
#include "reference/case_data.h"

namespace tilewise::cli {
namespace {

// Random problems without an additive mask, which visible_pairs() leaves alone: -inf costs as much as any
// bias.
std::vector<CaseData> problems() {
  std::vector<CaseData> result;
  for (uint64_t seed = 1; result.size() < 150; ++seed) {
    const auto c = parse_case(random_case(seed));
    if (c && c->bias_shape.empty()) result.emplace_back(*c, DType::f32, seed);
  }
  return result;
}

double pairs_one_by_one(const ForwardParams& p) {
  double pairs = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const SequenceShape s = shape_of_sequence(p, b);
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < s.q_length; ++i)
        for (int64_t j = s.key_begin; j < s.key_end; ++j) pairs += sees(p, s, b, h, i, j);
  }
  return pairs;
}

TEST(Picture, VisiblePairsAreTheOraclesPairs) {
  int halves = 0;
  for (const CaseData& data : problems()) {
    const BackwardParams p = data.params(Direction::forward);
    const double counted = visible_pairs(p), expected = pairs_one_by_one(p);
    if (counted == expected) continue;
    // The square causal case counts as half of all pairs instead of S (S + 1) / 2 a sequence.
    EXPECT_EQ(p.window_right, 0) << data.source.text;
    EXPECT_LT(expected - counted, static_cast<double>(p.heads_q * p.batch * std::max(p.seqlen_q, p.total_q)))
        << data.source.text;
    EXPECT_LT(counted, expected) << data.source.text;
    ++halves;
  }
  EXPECT_LT(halves, 50);
}

TEST(Picture, TilesAreWhatTheirPairsAre) {
  for (const CaseData& data : problems()) {
    const BackwardParams p = data.params(Direction::forward);
    if (p.batch == 0) continue;
    const int64_t b = longest_sequence(p), tile_m = 16, tile_n = 32;
    const Json walk = tile_walk(p, b, tile_m, tile_n);
    const SequenceShape s = shape_of_sequence(p, b);
    for (size_t m = 0; m < walk["classes"].size(); ++m) {
      const std::string line = walk["classes"][m].get<std::string>();
      for (size_t n = 0; n < line.size(); ++n) {
        const int64_t i0 = static_cast<int64_t>(m) * tile_m, j0 = static_cast<int64_t>(n) * tile_n;
        int64_t seen = 0, all = 0;
        for (int64_t i = i0; i < std::min(i0 + tile_m, s.q_rows); ++i)
          for (int64_t j = j0; j < std::min(j0 + tile_n, s.kv_rows); ++j, ++all)
            seen += i < s.q_length && j >= s.key_begin && j < s.key_end && sees(p, s, b, 0, i, j);
        EXPECT_TRUE(line[n] != '.' || seen == 0) << data.source.text;
        EXPECT_TRUE(line[n] != 'f' || seen == all) << data.source.text;
      }
    }
  }
}

TEST(Picture, MasksAreDrawnCellByCellWhereTheyFit) {
  const auto c = parse_case("name=x seqlen_q=4 head_dim=4 causal=bottom-right");
  ASSERT_TRUE(c) << c.status().message();
  const CaseData data(*c, DType::f32, 1);
  const Json m = mask_picture(data.params(Direction::forward), 0, 0);
  const uint8_t y = 255;
  EXPECT_EQ(m["shares"], base64({y, 0, 0, 0, y, y, 0, 0, y, y, y, 0, y, y, y, y}));
}

TEST(Picture, Base64) {
  EXPECT_EQ(base64({}), "");
  EXPECT_EQ(base64({'M'}), "TQ==");
  EXPECT_EQ(base64({'M', 'a'}), "TWE=");
  EXPECT_EQ(base64({'M', 'a', 'n'}), "TWFu");
}

TEST(Verify, ACorrectResultPassesAndOneWrongElementFails) {
  const auto c = parse_case("name=x batch=2 heads_q=2 seqlen_q=33 seqlen_kv=40 causal=bottom-right");
  ASSERT_TRUE(c) << c.status().message();
  CaseData data(*c, DType::f16, 7);
  const BackwardParams p = data.params(Direction::forward);
  data.set_forward_result(expect_forward(p));
  for (const int threads : {1, 3}) {
    const Expected64 expected = Expected64::forward(p, 16, false, threads);
    Verification v = expected.check(static_cast<const ForwardParams&>(p));
    EXPECT_TRUE(v.passed());
    EXPECT_EQ(v.rows, "all 66 rows");
    ASSERT_EQ(v.outputs.size(), 2u);
    EXPECT_EQ(v.outputs[0].name, "o");
    EXPECT_LT(v.outputs[0].max_error, 1e-2);

    auto* o = static_cast<uint16_t*>(p.o.data) + p.o.batch_stride + 20 * p.o.row_stride + p.o.head_stride + 5;
    const uint16_t before = *o;
    *o = 0x5000;  // 32
    v = expected.check(static_cast<const ForwardParams&>(p));
    EXPECT_FALSE(v.passed());
    EXPECT_NE(v.outputs[0].worst.find("batch 1, row 20, head 1, dim 5"), std::string::npos)
        << v.outputs[0].worst;
    *o = 0x7e00;  // NaN
    EXPECT_FALSE(expected.check(static_cast<const ForwardParams&>(p)).passed());
    *o = before;
  }
}

TEST(Verify, LongInputsAreSampledAtTileEdges) {
  ForwardParams p;
  p.batch = 2, p.heads_q = p.heads_kv = 1, p.seqlen_q = p.seqlen_kv = 3000, p.head_dim = p.head_dim_v = 8;
  EXPECT_FALSE(choose_rows(p, false, 64, true, 256));
  const RowSelection rows = choose_rows(p, false, 64, false, 256);
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->size(), 256u);
  int64_t edges = 0, of_second = 0;
  for (const RowId& id : *rows) {
    edges += id.row % 64 <= 1 || id.row % 64 == 63;
    of_second += id.sequence == 1;
  }
  EXPECT_GT(edges, 200);
  EXPECT_GT(of_second, 100);
  EXPECT_EQ(rows->front(), (RowId{0, 0}));
  EXPECT_EQ(rows->back(), (RowId{1, 2999}));
  p.seqlen_q = 2048;
  EXPECT_FALSE(choose_rows(p, false, 64, false, 256));
}

}  // namespace
}  // namespace tilewise::cli
