// The commands `tilewise verify` and `tilewise tune` in this process.
#include "cli/verify.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/command_test.h"
#include "cli/tune.h"
#include "tilewise/attention.h"

namespace tilewise::cli {
namespace {

Outcome command(std::vector<std::string> words) {
  return run_command(std::move(words), [](CLI::App& app, int* status) {
    add_verify(app, status);
    add_tune(app, status);
  });
}

TEST(Verify, PrintsTheShareOfTheAllowanceWorstFirstAndHowToRepeatIt) {
  const Outcome run = command({"verify", "--count", "8", "--json"});
  ASSERT_EQ(run.status, kDone) << run.out << run.err;
  const auto rows = run.rows();
  ASSERT_FALSE(rows.empty());
  double last = INFINITY;
  for (const Json& row : rows) {
    EXPECT_EQ(row["failed"], 0);
    EXPECT_EQ(row["problems"], 8);
    const double share = row["allowance_used"].is_null() ? -1 : row["allowance_used"].get<double>();
    EXPECT_LE(share, last);
    last = share;
  }
  const Json& worst = rows[0];
  ASSERT_GT(worst["ran"].get<int>(), 0);
  const Outcome again =
      command({"verify", "--json", "--kernel", worst["kernel"].get<std::string>(), "--seed",
               std::to_string(worst["seed"].get<uint64_t>()), "--case", worst["case"].get<std::string>()});
  ASSERT_EQ(again.status, kDone) << again.err;
  bool found = false;
  for (const Json& row : again.rows()) {
    if (row["kernel"] == worst["kernel"]) {
      EXPECT_EQ(row["allowance_used"], worst["allowance_used"]);
      found = true;
    }
  }
  EXPECT_TRUE(found);
}

TEST(Verify, TheTableHasARowAKernel) {
  const Outcome run = command({"verify", "--count", "2"});
  ASSERT_EQ(run.status, kDone) << run.err;
  EXPECT_NE(run.out.find("allowance"), std::string::npos);
  EXPECT_NE(run.out.find("repeat with: tilewise verify --kernel"), std::string::npos);
}

TEST(Verify, StopsByTimeAndRunsTheOracleOnRequest) {
  const Outcome timed = command({"verify", "--seconds", "0"});
  EXPECT_EQ(timed.status, kDone) << timed.err;
  const Outcome oracle = command({"verify", "--device", "reference", "--count", "3", "--json"});
  ASSERT_EQ(oracle.status, kDone) << oracle.out << oracle.err;
  for (const Json& row : oracle.rows())
    EXPECT_NE(row["kernel"].get<std::string>().find("reference"), std::string::npos);
}

TEST(Verify, RefusesBadOptions) {
  const std::pair<std::vector<std::string>, int> refusals[] = {{{"--direction", "sideways"}, kBadInput},
                                                               {{"--direction", "decode"}, kCannotRun},
                                                               {{"--kernel", "forward_of_nobody"}, kBadInput},
                                                               {{"--device", "cuda:4096"}, kCannotRun},
                                                               {{"--device", "toaster"}, kBadInput},
                                                               {{"--count", "-7"}, kBadInput},
                                                               {{"--scale", "0"}, kBadInput},
                                                               {{"--threads", "-1"}, kBadInput},
                                                               {{"--case", "what=is this"}, kBadInput},
                                                               {{"--bogus"}, kBadInput}};
  for (const auto& [words, status] : refusals) {
    std::vector<std::string> all = words;
    all.insert(all.begin(), "verify");
    const Outcome run = command(all);
    EXPECT_EQ(run.status, status) << words[0] << ": " << run.err;
    EXPECT_FALSE(run.err.empty()) << words[0];
  }
}

TEST(Tune, WritesAFileThatPlanningFollows) {
  const auto folder = std::filesystem::temp_directory_path() / "tilewise_tune_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "here.txt").string();
  const std::vector<std::string> words = {"tune",    "-o",       path,         "--seqlen",  "32",
                                          "--heads", "2",        "--head-dim", "16",        "--direction",
                                          "forward", "--causal", "false",      "--seconds", "0.01"};
  const Outcome run = command(words);
  ASSERT_EQ(run.status, kDone) << run.err;
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_NE(text.find("forward f32 d16 q32 kv32 gqa1 full = forward_"), std::string::npos) << text;
  ContextOptions options;
  options.tuning_text = text.c_str();
  const auto context = Context::create(options);
  ASSERT_TRUE(context.ok()) << context.status().message();
  Problem p;
  p.batch = 1, p.heads_q = p.heads_kv = 2, p.head_dim = p.head_dim_v = 16, p.seqlen_q = p.seqlen_kv = 32;
  const auto planned = plan(p, *context);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->from_tuning, 1);
  EXPECT_NE(text.find(planned->kernel), std::string::npos);
  // A second run replaces the line of the same key.
  ASSERT_EQ(command(words).status, kDone);
  std::ifstream again(path);
  int lines = 0;
  for (std::string line; std::getline(again, line);) lines += line.rfind("forward ", 0) == 0;
  EXPECT_EQ(lines, 1);
  std::filesystem::remove_all(folder);
}

TEST(Tune, RefusesBadOptions) {
  const std::pair<std::vector<std::string>, int> refusals[] = {
      {{"--device", "cuda:4096"}, kCannotRun}, {{"--device", "toaster"}, kBadInput},
      {{"--seconds", "0"}, kBadInput},         {{"--direction", "up"}, kBadInput},
      {{"-o", "/dev/null/t.txt"}, kBadInput},  {{"--dtype", "f8e4m3"}, kCannotRun}};
  for (const auto& [words, status] : refusals) {
    std::vector<std::string> all = words;
    all.insert(all.begin(), "tune");
    const Outcome run = command(all);
    EXPECT_EQ(run.status, status) << words[0] << ": " << run.err;
    EXPECT_FALSE(run.err.empty()) << words[0];
  }
}

}  // namespace
}  // namespace tilewise::cli
