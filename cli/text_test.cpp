#include "cli/text.h"

#include <gtest/gtest.h>

namespace tilewise::cli {
namespace {

TEST(Text, DtypesHaveTheirOtherNames) {
  for (const char* name : {"f32", "FP32", "float32", "float"})
    EXPECT_EQ(*parse_dtype("--dtype", name), DType::f32);
  for (const char* name : {"f16", "fp16", "half"}) EXPECT_EQ(*parse_dtype("--dtype", name), DType::f16);
  EXPECT_EQ(*parse_dtype("--dtype", "bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("--dtype", "f8").status().message(),
            "--dtype was given 'f8'; accepted is f32, f16 or bf16.");
}

TEST(Text, BytesArePowersOf1024) {
  EXPECT_EQ(*parse_bytes("-", "4096"), 4096);
  EXPECT_EQ(*parse_bytes("-", "1.5k"), 1536);
  EXPECT_EQ(*parse_bytes("-", "512m"), 512 << 20);
  EXPECT_EQ(*parse_bytes("-", "1GiB"), 1 << 30);
  EXPECT_EQ(*parse_bytes("-", "0"), 0);
  for (const char* bad : {"", "g", "-1", "1x", "1gg", "nan", "inf", "0x10", "99999999t", "1 g"})
    EXPECT_FALSE(parse_bytes("-", bad)) << bad;
}

TEST(Text, NumbersAreWholeWords) {
  EXPECT_EQ(*parse_integer("-", "-3", INT64_MIN), -3);
  for (const char* bad : {"", "1.0", "1e3", "+1", " 1", "99999999999999999999"})
    EXPECT_FALSE(parse_integer("-", bad, INT64_MIN)) << bad;
  EXPECT_EQ(parse_integer("--threads", "0", 1, 64).status().message(),
            "--threads was given '0'; accepted is a whole number from 1 to 64.");
  EXPECT_DOUBLE_EQ(*parse_number("-", "-0.5"), -0.5);
  for (const char* bad : {"", "nan", "inf", "1,5", "x"}) EXPECT_FALSE(parse_number("-", bad)) << bad;
}

TEST(Text, WindowsAreTwoNumbersFromMinusOne) {
  EXPECT_EQ(*parse_window("-", "-1,3"), (std::pair<int64_t, int64_t>{-1, 3}));
  for (const char* bad : {"", ",", "1", "1,", "-2,0", "0,-2", "1,2,3", "a,b"})
    EXPECT_FALSE(parse_window("-", bad)) << bad;
}

TEST(Text, NearestForgivesTypingErrorsOnly) {
  const std::vector<std::string> known{"kv_lengths", "q_lengths", "mask", "bias", "q", "k"};
  EXPECT_EQ(nearest("kv_length", known), "kv_lengths");
  EXPECT_EQ(nearest("q_lenghts", known), "q_lengths");
  EXPECT_EQ(nearest("maks", known), "mask");
  EXPECT_EQ(nearest("position_embedding", known), "");
}

TEST(Text, RatesAndTimesHaveThreeDigits) {
  EXPECT_EQ(milliseconds_text(0.1234), "123 us");
  EXPECT_EQ(milliseconds_text(12.345), "12.3 ms");
  EXPECT_EQ(milliseconds_text(12345), "12.3 s");
  EXPECT_EQ(flops_text(1.5e11), "150 GFLOP/s");
  EXPECT_EQ(flops_text(1.5e12), "1.50 TFLOP/s");
}

}  // namespace
}  // namespace tilewise::cli
