#include "tune/search.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tilewise::tune {
namespace {

TuningLine line(int64_t seqlen, const char* kernel, double microseconds) {
  TuningLine made;
  made.key.head_dim = made.key.head_dim_v = 64;
  made.key.seqlen_q = made.key.seqlen_kv = seqlen;
  made.kernel = kernel;
  made.microseconds = microseconds;
  return made;
}

class TuningFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("tilewise_search_test_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
               "_" + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(TuningFile, IsReadAsItWasWrittenAndLeavesNothingBeside) {
  Tuning tuning;
  tuning.device = "Some CPU";
  tuning.library = "0.1.0";
  tuning.lines = {line(512, "b", 2), line(128, "a", 1)};
  std::filesystem::create_directories(folder_ / "tuning");
  const std::string path = (folder_ / "tuning" / "some-cpu.txt").string();
  const Status status = write_tuning(path, tuning);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto again = read_tuning(path);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->to_string(), tuning.to_string());
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_ / "tuning")) ++files;
  EXPECT_EQ(files, 1);
}

TEST_F(TuningFile, AMissingOneIsEmptyAndABrokenOneNamesItself) {
  const std::string path = (folder_ / "t.txt").string();
  const auto none = read_tuning(path);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->lines.empty());
  std::filesystem::create_directories(folder_);
  std::ofstream(path) << "nonsense\n";
  const auto broken = read_tuning(path);
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.status().message().find(path), std::string::npos);
}

TEST_F(TuningFile, CannotBeWrittenIntoAFolderThatIsAFile) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "file") << "x";
  const Status status = write_tuning((folder_ / "file" / "t.txt").string(), Tuning());
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("cannot be written"), std::string::npos);
}

TEST(Search, MergingReplacesTheSameKeyAndKeepsTheRest) {
  Tuning tuning;
  tuning.lines = {line(128, "old", 5), line(256, "kept", 6)};
  merge_lines(&tuning, {line(128, "new", 4), line(512, "more", 7)});
  ASSERT_EQ(tuning.lines.size(), 3u);
  for (const TuningLine& l : tuning.lines) EXPECT_NE(l.kernel, "old");
}

TEST(Search, FileNamesArePlain) {
  EXPECT_EQ(tuning_file_name("Intel(R) Xeon(R) Processor"), "intel-r-xeon-r-processor.txt");
  EXPECT_EQ(tuning_file_name("../etc"), "etc.txt");
  EXPECT_EQ(tuning_file_name(""), "unknown.txt");
}

TEST(Search, TimesEveryKernelFastestFirst) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  ProblemSize size;
  size.heads_q = size.heads_kv = 1, size.head_dim = size.head_dim_v = 16, size.seqlen_q = size.seqlen_kv = 32;
  MeasureOptions options;
  options.warmup = 1, options.repeats = 3;
  const auto times = time_kernels(*context, size, 1, 1, options);
  ASSERT_TRUE(times.ok()) << times.status().message();
  ASSERT_FALSE(times->empty());
  for (size_t i = 0; i < times->size(); ++i) {
    EXPECT_EQ((*times)[i].timing.repeats, 3);
    EXPECT_EQ((*times)[i].kernel.find("reference"), std::string::npos);
    if (i > 0) {
      EXPECT_GE((*times)[i].timing.median_ms, (*times)[i - 1].timing.median_ms);
    }
  }
}

}  // namespace
}  // namespace tilewise::tune
