// The 8-bit storage types: every code is exact in fp32 and comes back, and what lies between is rounded to
// the nearest code, to even at a tie.
#include "core/element.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tilewise {
namespace {

TEST(Element, EveryCodeOfF8ComesBack) {
  EXPECT_EQ(float_of_f8e4m3(0x7e), 448.0f);
  EXPECT_EQ(float_of_f8e4m3(0x01), 0x1p-9f);
  EXPECT_EQ(float_of_f8e4m3(0x38), 1.0f);
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    const float value = float_of_f8e4m3(bits);
    EXPECT_EQ(std::isnan(value), (code & 0x7f) == 0x7f) << code;
    EXPECT_EQ(f8e4m3_of_float(value), bits) << code;
  }
}

TEST(Element, F8IsRoundedToTheNearest) {
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = float_of_f8e4m3(code), high = float_of_f8e4m3(static_cast<uint8_t>(code + 1));
    const float middle = low + (high - low) / 2;
    const auto next = static_cast<uint8_t>(code + 1);
    EXPECT_EQ(f8e4m3_of_float(middle), code % 2 == 0 ? code : next) << middle;
    EXPECT_EQ(f8e4m3_of_float(std::nextafter(middle, 0.0f)), code) << middle;
    EXPECT_EQ(f8e4m3_of_float(std::nextafter(middle, 1e9f)), next) << middle;
    EXPECT_EQ(f8e4m3_of_float(-middle) & 0x7f, f8e4m3_of_float(middle));
  }
  for (const float large : {449.0f, 464.0f, 1e9f, HUGE_VALF})
    EXPECT_EQ(f8e4m3_of_float(large), 0x7e) << large;
  EXPECT_EQ(f8e4m3_of_float(-HUGE_VALF), 0xfe);
}

TEST(Element, I8IsRoundedToEvenAndHeld) {
  for (int value = -127; value <= 127; ++value) {
    EXPECT_EQ(i8_of_float(static_cast<float>(value)), value);
    const float half = static_cast<float>(value) + 0.5f;
    EXPECT_EQ(i8_of_float(half), std::min(static_cast<int>(std::nearbyint(half)), 127)) << half;
  }
  EXPECT_EQ(i8_of_float(1e9f), 127);
  EXPECT_EQ(i8_of_float(-HUGE_VALF), -127);
  EXPECT_EQ(i8_of_float(NAN), 0);
  int8_t stored = 5;
  store_element(&stored, DType::i8, 0, -3.4f);
  EXPECT_EQ(load_element(&stored, DType::i8, 0), -3.0f);
}

}  // namespace
}  // namespace tilewise
