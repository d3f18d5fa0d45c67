// The command `tilewise bench` in this process: its grid, its rows, and what it refuses.
#include "cli/bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "cli/bench_grid.h"
#include "cli/bench_report.h"
#include "cli/command_test.h"
#include "cli/rivals/rival.h"

namespace tilewise::cli {
namespace {

// `words` after "tilewise bench".
Outcome bench(std::vector<std::string> words) {
  words.insert(words.begin(), "bench");
  return run_command(std::move(words), add_bench);
}

const std::vector<std::string> kSmall = {"--heads",   "2", "--head-dim", "16", "--seqlen",  "24",
                                         "--repeats", "1", "--warmup",   "0",  "--threads", "1"};
std::vector<std::string> small(std::vector<std::string> more) {
  more.insert(more.begin(), kSmall.begin(), kSmall.end());
  return more;
}

TEST(BenchGrid, ListsMakeAGridWithLengthsFastest) {
  BenchOptions o;
  o.directions = {"forward", "backward"};
  o.dtypes = {"float32", "bf16"};
  o.seqlen = {512, 1024};
  o.causal = {"false", "top-left"};
  const auto grid = make_grid(o);
  ASSERT_TRUE(grid.ok()) << grid.status().message();
  ASSERT_EQ(grid->size(), 16u);
  EXPECT_EQ((*grid)[0].size.seqlen_q, 512);
  EXPECT_EQ((*grid)[1].size.seqlen_q, 1024);
  EXPECT_EQ((*grid)[1].size.seqlen_kv, 1024);
  EXPECT_EQ((*grid)[3].size.position, Position::top_left);
  EXPECT_EQ((*grid)[15].size.direction, Direction::backward);
  EXPECT_EQ((*grid)[15].size.dtype, DType::bf16);
}

TEST(BenchGrid, WhatIsNotGivenFollowsItsNeighbour) {
  BenchOptions o;
  o.heads = {8};
  o.head_dim = {40};
  o.seqlen = {3};
  o.window = {5, -1};
  const auto grid = make_grid(o);
  ASSERT_TRUE(grid.ok());
  const tune::ProblemSize& s = grid->front().size;
  EXPECT_EQ(s.heads_kv, 8);
  EXPECT_EQ(s.head_dim_v, 40);
  EXPECT_EQ(s.seqlen_kv, 3);
  EXPECT_EQ(s.window_left, 5);
  EXPECT_EQ(s.window_right, -1);
}

TEST(Bench, JsonRowsHaveTheContractsKeysInItsOrder) {
  // The oracle's rows: there are some for either direction in every build.
  const Outcome run =
      bench(small({"--json", "--causal", "--direction", "forward,backward", "--device", "reference"}));
  ASSERT_EQ(run.status, kDone) << run.err;
  const char* contract[] = {"schema",      "device",      "kernel",          "direction", "dtype",
                            "batch",       "heads_q",     "heads_kv",        "head_dim",  "seqlen_q",
                            "seqlen_kv",   "causal",      "ms_min",          "ms_median", "ms_max",
                            "tflops",      "peak_tflops", "percent_of_peak", "gbps",      "workspace_bytes",
                            "bytes_ideal", "rival"};
  std::istringstream lines(run.out);
  int rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) {
    const auto row = nlohmann::ordered_json::parse(line);
    size_t at = 0;
    for (const auto& [key, value] : row.items()) {
      if (at < std::size(contract)) {
        EXPECT_EQ(key, contract[at]);
      }
      ++at;
    }
    EXPECT_EQ(row["schema"], 1);
    EXPECT_EQ(row["device"], "reference");
    EXPECT_EQ(row["dtype"], "f32");
    EXPECT_EQ(row["causal"], true);
    EXPECT_EQ(row["seqlen_q"], 24);
    EXPECT_TRUE(row["rival"].is_null());
    EXPECT_GT(row["ms_median"].get<double>(), 0);
    EXPECT_LE(row["ms_min"].get<double>(), row["ms_median"].get<double>());
    EXPECT_GT(row["percent_of_peak"].get<double>(), 0);
    EXPECT_GE(row["workspace_bytes"].get<int64_t>(), 0);
    EXPECT_EQ(row["direction"], rows == 0 ? "forward" : "backward");
  }
  EXPECT_EQ(rows, 2);
}

TEST(Bench, CsvHasAHeaderAndAsManyFields) {
  const Outcome run = bench(small({"--csv"}));
  ASSERT_EQ(run.status, kDone) << run.err;
  std::istringstream lines(run.out);
  std::string header, row, more;
  std::getline(lines, header);
  std::getline(lines, row);
  EXPECT_FALSE(std::getline(lines, more));
  EXPECT_EQ(header.rfind("schema,device,kernel,direction,", 0), 0u) << header;
  EXPECT_EQ(std::count(header.begin(), header.end(), ','), std::count(row.begin(), row.end(), ','));
}

TEST(Bench, TheTableNamesTheKernelAndThePeak) {
  const Outcome run = bench(small({}));
  ASSERT_EQ(run.status, kDone) << run.err;
  EXPECT_NE(run.out.find("% peak"), std::string::npos);
  EXPECT_NE(run.out.find("forward_"), std::string::npos);
}

TEST(Bench, AForcedKernelRunsAndAllMeansEveryOne) {
  const Outcome all = bench(small({"--json", "--kernel", "all"}));
  ASSERT_EQ(all.status, kDone) << all.err;
  std::set<std::string> names;
  for (const Json& row : all.rows()) names.insert(row["kernel"].get<std::string>());
  ASSERT_FALSE(names.empty());
  const Outcome one = bench(small({"--json", "--kernel", *names.begin()}));
  ASSERT_EQ(one.status, kDone) << one.err;
  EXPECT_EQ(one.rows().at(0)["kernel"], *names.begin());
}

TEST(Bench, RivalsRunOrSayWhyNot) {
  const Outcome run = bench(small({"--json", "--rivals"}));
  ASSERT_EQ(run.status, kDone) << run.err;
  const auto rows = run.rows();
  ASSERT_EQ(rows.size(), 1 + rival_names().size());
  for (size_t r = 0; r < rival_names().size(); ++r) {
    const Json& row = rows[1 + r];
    EXPECT_EQ(row["rival"], rival_names()[r]);
    EXPECT_NE(row["ms_median"].is_null(), row["not_run"].is_null()) << row;
    EXPECT_EQ(
        row["not_run"].is_string() && row["not_run"].get<std::string>().find("differs") != std::string::npos,
        false)
        << row;
  }
  const Outcome table = bench(small({"--rivals", "cudnn"}));
  EXPECT_NE(table.out.find("not run: cudnn: "), std::string::npos) << table.out;
}

// The honest rival gives the oracle's numbers, also for windows, grouped heads and unequal dims, in both
// directions.
TEST(Bench, TheThreeStepRivalDoesTheSameWork) {
  if (const auto found = find_three_step(); !found) GTEST_SKIP() << found.status().message();
  for (const auto& [direction, rival] :
       {std::pair("forward", "three-step"), std::pair("backward", "three-step"),
        std::pair("backward", "three-step-again")}) {
    for (const std::vector<std::string>& shape : {std::vector<std::string>{"--causal"},
                                                  {"--window", "3,2"},
                                                  {"--heads-kv", "1"},
                                                  {"--head-dim-v", "24"},
                                                  {"--seqlen-kv", "40", "--causal"},
                                                  {"--seqlen-kv", "7", "--causal"},
                                                  {"--causal", "top-left"}}) {
      std::vector<std::string> words =
          small({"--json", "--device", "reference", "--rivals", rival, "--direction", direction});
      words.insert(words.end(), shape.begin(), shape.end());
      const Outcome run = bench(words);
      ASSERT_EQ(run.status, kDone) << run.err;
      ASSERT_EQ(run.rows().size(), 2u);
      EXPECT_TRUE(run.rows()[1]["not_run"].is_null())
          << direction << " " << shape[0] << ": " << run.rows()[1];
    }
  }
}

// 16-bit tensors too, and a decode, whose groups of heads share a product.
TEST(Bench, TheThreeStepRivalDoesTheSameWorkIn16Bits) {
  if (const auto found = find_three_step(); !found) GTEST_SKIP() << found.status().message();
  for (const std::vector<std::string>& shape :
       {std::vector<std::string>{"forward", "2", "2", "24", "24", "--causal"},
        {"backward", "2", "1", "24", "24"},
        {"decode", "4", "2", "1", "70"},
        {"decode", "4", "2", "3", "70", "--causal"}}) {
    for (const char* dtype : {"bf16", "f16"}) {
      std::vector<std::string> words = {
          "--json", "--rivals",   "three-step", "--dtype",    dtype,    "--repeats",   "1",      "--warmup",
          "0",      "--threads",  "1",          "--head-dim", "16",     "--direction", shape[0], "--heads",
          shape[1], "--heads-kv", shape[2],     "--seqlen",   shape[3], "--seqlen-kv", shape[4]};
      words.insert(words.end(), shape.begin() + 5, shape.end());
      const Outcome run = bench(words);
      ASSERT_EQ(run.status, kDone) << run.err;
      ASSERT_EQ(run.rows().size(), 2u);
      EXPECT_TRUE(run.rows()[1]["not_run"].is_null()) << dtype << " " << shape[0] << ": " << run.rows()[1];
      EXPECT_GT(run.rows()[1]["times_ours"].get<double>(), 0.0);
    }
  }
}

TEST(Bench, AStepIsItsForwardAndItsBackward) {
  const Outcome run = bench(small({"--json", "--direction", "forward,backward,step", "--rivals",
                                   "three-step,three-step-again,ggml", "--causal"}));
  ASSERT_EQ(run.status, kDone) << run.err;
  std::vector<Json> ours;
  for (const Json& row : run.rows()) {
    if (row["rival"].is_null()) ours.push_back(row);
    if (row["rival"] == "three-step-again") {
      EXPECT_EQ(row["not_run"].is_null(), row["direction"] == "backward" && find_three_step().ok()) << row;
    }
    EXPECT_FALSE(row["rival"] == "ggml" && row["direction"] == "step" && row["not_run"].is_null()) << row;
  }
  ASSERT_EQ(ours.size(), 3u);
  EXPECT_EQ(ours[2]["direction"], "step");
  EXPECT_EQ(ours[2]["kernel"],
            ours[0]["kernel"].get<std::string>() + " + " + ours[1]["kernel"].get<std::string>());
  const auto flops = [&](int i) {
    return ours[i]["tflops"].get<double>() * ours[i]["ms_median"].get<double>();
  };
  EXPECT_NEAR(flops(2), flops(0) + flops(1), 1e-3 * flops(2));
  EXPECT_GE(ours[2]["workspace_bytes"].get<int64_t>(), ours[1]["workspace_bytes"].get<int64_t>());
}

struct Refusal {
  std::vector<std::string> words;
  int status;
  const char* says;
};

TEST(Bench, RefusesWithTheOptionWhatWasGivenAndWhatIsAccepted) {
  const Refusal refusals[] = {
      {{"--direction", "sideways"}, kBadInput, "--direction"},
      {{"--dtype", "f8e4m3"}, kCannotRun, "not in this version"},
      {{"--dtype", "f64"}, kBadInput, "--dtype"},
      {{"--device", "cuda:4096"}, kCannotRun, "CUDA"},
      {{"--device", "toaster"}, kBadInput, "--device"},
      {{"--seqlen", "0"}, kBadInput, "--seqlen"},
      {{"--seqlen", "many"}, kBadInput, "--seqlen"},
      {{"--heads", "12", "--heads-kv", "5"}, kBadInput, "--heads-kv"},
      {{"--head-dim", "-4"}, kBadInput, "--head-dim"},
      {{"--window", "-2,0"}, kBadInput, "--window"},
      {{"--window", "4"}, kBadInput, "--window"},
      {{"--causal", "maybe"}, kBadInput, "--causal"},
      {{"--threads", "-1"}, kBadInput, "--threads"},
      {{"--repeats", "0"}, kBadInput, "--repeats"},
      {{"--warmup", "-3"}, kBadInput, "--warmup"},
      {{"--json", "--csv"}, kBadInput, "--csv"},
      {{"--rivals", "nobody"}, kBadInput, "--rivals"},
      {{"--direction", "step", "--kernel", "all"}, kBadInput, "--kernel"},
      {{"--direction", "step", "--page-size", "16"}, kBadInput, "--page-size"},
      {{"--direction", "step", "--device", "reference"}, kCannotRun, "--direction step"},
      {{"--kernel", "forward_of_nobody"}, kBadInput, "forward_of_nobody"},
      {{"--seqlen", "1000000", "--heads", "4096", "--head-dim", "512"}, kCannotRun, "needs"},
      {{"--nonsense"}, kBadInput, "--nonsense"},
  };
  for (const Refusal& refusal : refusals) {
    const Outcome run = bench(refusal.words);
    EXPECT_EQ(run.status, refusal.status) << refusal.words[0] << ": " << run.err;
    EXPECT_NE(run.err.find(refusal.says), std::string::npos) << refusal.words[0] << ": " << run.err;
    EXPECT_EQ(run.out.find("schema"), std::string::npos);
  }
}

TEST(Bench, DecodeIsHeldAgainstTheBandwidth) {
  const Outcome run =
      bench({"--json", "--direction", "decode", "--dtype", "bf16", "--heads", "4", "--heads-kv", "2",
             "--seqlen-kv", "200", "--page-size", "0,16", "--repeats", "1", "--warmup", "0"});
  ASSERT_EQ(run.status, kDone) << run.err;
  ASSERT_EQ(run.rows().size(), 2u);
  for (const auto& row : run.rows()) {
    EXPECT_EQ(row["direction"], "decode");
    EXPECT_EQ(row["seqlen_q"], 1);
    EXPECT_TRUE(row["peak_tflops"].is_null());
    EXPECT_GT(row["peak_gbps"].get<double>(), 0);
    const double share = 100 * row["gbps"].get<double>() / row["peak_gbps"].get<double>();
    EXPECT_NEAR(row["percent_of_peak"].get<double>(), share, 1e-3 * share);
  }
  EXPECT_EQ(run.rows()[0]["page_size"], 0);
  EXPECT_EQ(run.rows()[1]["page_size"], 16);
  const Outcome backward = bench({"--direction", "backward", "--page-size", "16"});
  EXPECT_EQ(backward.status, kBadInput);
  EXPECT_NE(backward.err.find("--page-size"), std::string::npos) << backward.err;
}

TEST(BenchRow, FiguresFollowFromTheMedian) {
  BenchRow row;
  row.flops = 3e9;
  row.peak_flops = 100e9;
  row.bytes_ideal = 6e6;
  row.timing.repeats = 1;
  row.timing.median_ms = 60;
  EXPECT_DOUBLE_EQ(row.tflops(), 0.05);
  EXPECT_DOUBLE_EQ(row.percent_of_peak(), 50);
  EXPECT_DOUBLE_EQ(row.gbps(), 0.1);
}

}  // namespace
}  // namespace tilewise::cli
