#include "plan/tuning.h"

#include <gtest/gtest.h>

#include "plan/made_up.h"

namespace tilewise {
namespace {

TEST(Tuning, TextRoundTrip) {
  const std::string text =
      "device: Some CPU @ 2.0 GHz\n"
      "library: 0.1.0\n"
      "forward f32 d64 q128 kv128 gqa1 full = forward_a 12.5us\n"
      "forward bf16 d128 q4096 kv4096 gqa4 band = forward_b 812us\n"
      "backward f16 d192v128 q1 kv77 gqa8 general = backward_c 3us\n";
  auto parsed = parse_tuning("# a comment\n\n" + text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->to_string(), text);
  EXPECT_EQ(parsed->lines[2].key.head_dim_v, 128);
  EXPECT_EQ(parsed->lines[0].microseconds, 12.5);
  auto again = parse_tuning(parsed->to_string());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->to_string(), text);
}

TEST(Tuning, MalformedLinesAreNamed) {
  const char* bad[] = {"forward f32 d64 q128 kv128 gqa1 full = forward_a",
                       "forward f32 d64 q128 kv128 gqa1 full = forward_a 12",
                       "forward f32 d64 q128 kv128 gqa1 full = forward_a -1us",
                       "forward f32 d64 q128 kv128 gqa1 full = forward_a nanus",
                       "sideways f32 d64 q128 kv128 gqa1 full = forward_a 1us",
                       "forward i32 d64 q128 kv128 gqa1 full = forward_a 1us",
                       "forward f32 d64x q128 kv128 gqa1 full = forward_a 1us",
                       "forward f32 d64 q128 kv128 gqa0 full = forward_a 1us",
                       "forward f32 d64 q99999999999999999999 kv128 gqa1 full = forward_a 1us",
                       "forward f32 d64 q128 kv128 gqa1 round = forward_a 1us",
                       "{\"json\": 1}"};
  for (const char* line : bad) {
    auto parsed = parse_tuning(std::string("# first\n") + line + "\n");
    ASSERT_FALSE(parsed.ok()) << line;
    EXPECT_EQ(parsed.status().message().find("tuning line 2 is"), 0u) << parsed.status().message();
  }
}

TEST(Tuning, NearestLine) {
  auto tuning = parse_tuning(
      "forward f32 d16 q64 kv64 gqa2 full = a 1us\n"
      "forward f32 d16 q128 kv128 gqa2 full = b 1us\n"
      "forward f32 d16 q128 kv128 gqa2 full = faster_b 0.5us\n"
      "forward f32 d16 q64 kv64 gqa2 band = c 1us\n"
      "forward f32 d32 q64 kv64 gqa2 full = d 1us\n"
      "forward f32 d16 q4096 kv4096 gqa2 full = e 1us\n");
  ASSERT_TRUE(tuning.ok());
  const auto first = [&](int64_t seqlen) -> std::string {
    const auto order = tuning->nearest(tuning_key(made_up::problem(seqlen)));
    return order.empty() ? "" : tuning->lines[static_cast<size_t>(order[0])].kernel;
  };
  EXPECT_EQ(first(64), "a");
  EXPECT_EQ(first(70), "a");
  EXPECT_EQ(first(100), "faster_b");
  EXPECT_EQ(first(32), "a");  // a factor of 2
  EXPECT_EQ(first(31), "");   // more than that
  EXPECT_EQ(first(1000), "");
  EXPECT_EQ(first(8192), "e");
  EXPECT_EQ(first(0), "");
}

TEST(Tuning, KeyOfAProblem) {
  Problem p = made_up::problem(64);
  EXPECT_EQ(to_string(tuning_key(p)), "forward f32 d16 q64 kv64 gqa2 full");
  p.causal = 1;
  p.head_dim_v = 8;
  EXPECT_EQ(to_string(tuning_key(p)), "forward f32 d16v8 q64 kv64 gqa2 band");
  p.features = TILEWISE_HAS_BIAS;
  EXPECT_EQ(to_string(tuning_key(p)), "forward f32 d16v8 q64 kv64 gqa2 general");
}

}  // namespace
}  // namespace tilewise
