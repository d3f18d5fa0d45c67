#include "tilewise/version.h"

#include <gtest/gtest.h>

#include <string>

#include "tilewise/c.h"

TEST(Version, StringAndNumbersAgree) {
  const std::string numbers = std::to_string(TILEWISE_VERSION_MAJOR) + "." +
                              std::to_string(TILEWISE_VERSION_MINOR) + "." +
                              std::to_string(TILEWISE_VERSION_PATCH);
  EXPECT_EQ(tilewise_version(), numbers);
}
