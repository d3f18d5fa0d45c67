// Long problems, held against the oracle at chosen rows and keys.
#ifndef TILEWISE_TESTS_SUPPORT_LONG_PROBLEM_H_
#define TILEWISE_TESTS_SUPPORT_LONG_PROBLEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/kernel_run.h"

namespace tilewise::testing_support {

// The first and last rows of tiles of 16 to 128, spread over the sequence, and its ends.
std::vector<RowId> spread_rows(int64_t batch, int64_t rows, int64_t count);

// The planner's choice alone, or with it every kernel but the reference.
enum class Which { choice, all };

// A case without lengths, at `count` rows and keys of each sequence; on `device` where one is given. How many
// kernels ran, the planner's choice not counted.
int check_long(const std::string& line, DType dtype, uint64_t seed, Which which = Which::all,
               const DeviceInfo* device = nullptr, int64_t count = 24);

}  // namespace tilewise::testing_support
#endif  // TILEWISE_TESTS_SUPPORT_LONG_PROBLEM_H_
