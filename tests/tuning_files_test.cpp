// The measured lines of tuning/: each names a kernel of the table, and decides for the problem it is about.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/text.h"
#include "cuda/kernels.h"
#include "cuda/made_up_device.h"
#include "plan/planner.h"

namespace tilewise {
namespace {

// A problem of the line's key, whose every stride is a multiple of 128 bytes.
Problem problem_of(const TuningKey& key) {
  Problem p;
  p.direction = static_cast<int32_t>(key.direction);
  p.batch = 1;
  p.heads_kv = 16;
  p.heads_q = p.heads_kv * key.group;
  p.seqlen_q = key.seqlen_q;
  p.seqlen_kv = key.seqlen_kv;
  p.head_dim = key.head_dim;
  p.head_dim_v = key.head_dim_v;
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = p.dtype_dout = p.dtype_dq = p.dtype_dk = p.dtype_dv =
      static_cast<int32_t>(key.dtype);
  p.alignment = 128;
  if (key.direction == Direction::backward) p.wants = TILEWISE_WANT_DQ | TILEWISE_WANT_DK | TILEWISE_WANT_DV;
  if (key.score == ScoreClass::band) p.causal = 1;
  if (key.score == ScoreClass::general) p.features |= TILEWISE_HAS_SEGMENT_IDS;
  return p;
}

TEST(TuningFiles, EachLineDecidesForItsProblem) {
  if (cuda_kernels().empty()) GTEST_SKIP() << "this library has no CUDA kernels, whose lines the files hold";
  const std::filesystem::path folder = std::filesystem::path(TILEWISE_SOURCE_DIR) / "tuning";
  const tilewise_device_info device = made_up_device();
  size_t lines = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(file.path().string());
    std::ifstream stream(file.path());
    std::stringstream text;
    text << stream.rdbuf();
    const auto tuning = parse_tuning(text.str());
    ASSERT_TRUE(tuning.ok()) << tuning.status().message();
    EXPECT_FALSE(tuning->device.empty());
    for (const TuningLine& line : tuning->lines) {
      ++lines;
      const Problem problem = problem_of(line.key);
      ASSERT_EQ(to_string(tuning_key(problem)), to_string(line.key));
      SCOPED_TRACE(cat(to_string(line.key), " = ", line.kernel));
      const auto rows = Registry::builtin().rows();
      EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](const Kernel* row) {
        return line.kernel == row->name;
      })) << "no such kernel";
      // Of lines with one key the fastest decides.
      const TuningLine& first = tuning->lines[static_cast<size_t>(tuning->nearest(line.key).at(0))];
      EXPECT_EQ(to_string(first.key), to_string(line.key));
      EXPECT_LE(first.microseconds, line.microseconds);
      Plan plan;
      const Status s = make_plan(
          {.registry = Registry::builtin(), .problem = problem, .device = device, .tuning = &*tuning}, &plan);
      ASSERT_TRUE(s.ok()) << s.message();
      EXPECT_EQ(std::string(plan.kernel), first.kernel);
      EXPECT_EQ(plan.from_tuning, 1);
    }
  }
  EXPECT_GT(lines, 0u);
}

}  // namespace
}  // namespace tilewise
