#include "tests/support/long_problem.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/text.h"

namespace tilewise::testing_support {

std::vector<RowId> spread_rows(int64_t batch, int64_t rows, int64_t count) {
  std::vector<RowId> chosen;
  for (int64_t b = 0; b < batch; ++b) {
    int64_t last = -1;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t edge = n * rows / count / 16 * 16;
      const int64_t row = n + 1 == count ? rows - 1 : std::min(rows - 1, edge + (n % 2 == 0 ? 0 : 15));
      if (row > last) chosen.push_back({b, row});
      last = std::max(last, row);
    }
  }
  return chosen;
}

int check_long(const std::string& line, DType dtype, uint64_t seed, Which which, const DeviceInfo* device,
               int64_t count) {
  SCOPED_TRACE(cat(line, " dtype=", name_of(dtype), " seed ", seed));
  auto c = parse_case(line);
  if (!c) {
    ADD_FAILURE() << c.status().message();
    return 0;
  }
  c->poison_unseen = false;  // finding what nobody sees takes the square of the length
  CaseData data(*c, dtype, seed);
  const Problem& sizes = c->problem;
  const auto queries = spread_rows(sizes.batch, sizes.seqlen_q, count);
  const auto keys = spread_rows(sizes.batch, sizes.seqlen_kv, count);
  int ran = 0;
  const auto check = [&](const char* name, Direction direction, const Expectation& answer) {
    SCOPED_TRACE(name != nullptr ? name : "the planner's choice");
    const RunResult result = run_kernel(shared_context(), name, data, direction, {2, Poison::nan, device});
    EXPECT_EQ(result.failure, "");
    if (!result.ran) return;
    if (name != nullptr) ++ran;
    const Comparison worst = compare_outputs(data, direction, answer);
    EXPECT_TRUE(worst.passed()) << worst.text;
  };
  const auto check_all = [&](Direction direction, const Expectation& answer) {
    for (const Kernel* kernel : kernels_of(direction, device != nullptr))
      if (kernel->target != Target::reference && which == Which::all) check(kernel->name, direction, answer);
    check(nullptr, direction, answer);
  };
  // The planner's forward is the last one, and gives the backward its o and lse.
  check_all(Direction::forward, expect_forward(data.params(Direction::forward), queries));
  if (!c->backward) return ran;
  data.poison_outputs(Direction::backward, Poison::nan);
  check_all(Direction::backward, expect_backward(data.params(Direction::backward), queries, keys));
  return ran;
}

}  // namespace tilewise::testing_support
