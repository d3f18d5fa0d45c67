// Every kernel of the table on every case that it does not refuse, through the public API, against the
// oracle. The oracle's answer is computed once a case and shared by all kernels.

#include <gtest/gtest.h>

#include "core/text.h"
#include "tests/support/kernel_run.h"

namespace tilewise {
namespace {

using namespace testing_support;

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const Case& c : file_cases()) {
    for (const DType dtype : c.dtypes) all.push_back({&c, dtype});
  }
  return all;
}

// Three runs of one kernel: two poisons, three thread counts, unseen keys NaN and then finite. The first is
// compared with the oracle; no bit may differ in the others.
void check_kernel(const Kernel& kernel, CaseData& data, CaseData& unpoisoned, Direction direction,
                  const Expectation& expectation, int* ran) {
  SCOPED_TRACE(kernel.name);
  LoggedContext& logged = shared_context();
  const RunResult first = run_kernel(logged, kernel.name, data, direction, {2, Poison::nan});
  ASSERT_EQ(first.failure, "");
  if (!first.ran) return;
  ++*ran;
  const Comparison worst = compare_outputs(data, direction, expectation);
  EXPECT_TRUE(worst.passed()) << worst.text;
  EXPECT_EQ(data.damage(direction, expectation), "");
  EXPECT_EQ(missed_answer(data, direction, expectation), "");
  if (kernel.target == Target::reference) return;

  const std::vector<std::byte> bits = output_bits(data, direction, expectation);
  ASSERT_EQ(run_kernel(logged, kernel.name, data, direction, {1, Poison::large}).failure, "");
  EXPECT_EQ(first_difference(data, direction, expectation, bits), "")
      << "1 thread and scratch of 3e38 instead of 2 threads and NaN";
  ASSERT_EQ(run_kernel(logged, kernel.name, unpoisoned, direction, {3, Poison::nan}).failure, "");
  EXPECT_EQ(first_difference(unpoisoned, direction, expectation, bits), "")
      << "3 threads and finite values where nobody may look, instead of 2 threads and NaN there";
}

// The planner's own choice; it never takes the reference.
void check_choice(CaseData& data, Direction direction, const Expectation& expectation) {
  SCOPED_TRACE("the planner's choice");
  ASSERT_EQ(run_kernel(shared_context(), nullptr, data, direction, {2, Poison::nan}).failure, "");
  const Comparison worst = compare_outputs(data, direction, expectation);
  EXPECT_TRUE(worst.passed()) << worst.text;
}

void check_case(const Case& c, DType dtype, uint64_t seed) {
  SCOPED_TRACE(cat(c.text, " dtype=", name_of(dtype), " seed ", seed));
  CaseData data(c, dtype, seed);
  Case finite = c;
  finite.poison_unseen = false;
  CaseData unpoisoned(finite, dtype, seed);
  Expectation expectation = expect_forward(data.params(Direction::forward));
  int ran = 0;
  if (c.forward) {
    for (const Kernel* kernel : kernels_of(Direction::forward)) {
      check_kernel(*kernel, data, unpoisoned, Direction::forward, expectation, &ran);
    }
    EXPECT_GT(ran, 1) << "the reference alone took the forward";
    check_choice(data, Direction::forward, expectation);
  }
  if (!c.backward) return;
  data.set_forward_result(expectation);
  unpoisoned.set_forward_result(expectation);
  data.poison_outputs(Direction::backward, Poison::nan);
  expectation = expect_backward(data.params(Direction::backward));
  ran = 0;
  for (const Kernel* kernel : kernels_of(Direction::backward)) {
    check_kernel(*kernel, data, unpoisoned, Direction::backward, expectation, &ran);
  }
  EXPECT_GT(ran, 1) << "the reference alone took the backward";
  check_choice(data, Direction::backward, expectation);
}

class Kernels : public testing::TestWithParam<Subject> {};

TEST_P(Kernels, AgreeWithTheOracle) { check_case(*GetParam().source, GetParam().dtype, run_seed()); }

INSTANTIATE_TEST_SUITE_P(Cases, Kernels, testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject.param.name(); });

// Random problems, fresh ones in each run.
class RandomKernels : public testing::TestWithParam<int> {};

TEST_P(RandomKernels, AgreeWithTheOracle) {
  const uint64_t seed = run_seed() * 1000 + static_cast<uint64_t>(GetParam());
  const auto c = parse_case(random_case(seed));
  ASSERT_TRUE(c.ok()) << c.status().message();
  constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
  check_case(*c, kDTypes[seed % 3], seed);
}

INSTANTIATE_TEST_SUITE_P(Properties, RandomKernels, testing::Range(0, 150));

// No kernel may refuse everything: each one whose instruction set this machine has runs the plainest problem.
TEST(EveryKernel, EachOneRunsThePlainProblem) {
  const auto device = DeviceInfo::query();
  ASSERT_TRUE(device.ok());
  const auto available = [&](Target target) {
    switch (target) {
      case Target::simt:
      case Target::sm80:
      case Target::sm90:
        return false;  // cuda_kernels_test
      case Target::reference:
      case Target::scalar:
        return true;
      case Target::avx2:
        return (device->isa & TILEWISE_ISA_AVX2) != 0;
      case Target::avx512:
        return (device->isa & TILEWISE_ISA_AVX512) != 0;
      case Target::avx512bf16:
        return (device->isa & TILEWISE_ISA_AVX512BF16) != 0;
      case Target::neon:
        return (device->isa & TILEWISE_ISA_NEON) != 0;
    }
    return false;
  };
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Kernel* kernel : kernels_of(direction)) {
      if (!available(kernel->target)) continue;
      const int64_t dim = kernel->head_dim != 0 ? kernel->head_dim : 64;
      const Case c = parsed(cat("name=plain heads_q=2 seqlen_q=40 head_dim=", dim, words_for(*kernel)));
      CaseData data(c, dtype_for(*kernel), 1);
      data.set_forward_result(expect_forward(data.params(Direction::forward)));
      const RunResult result = run_kernel(shared_context(), kernel->name, data, direction);
      EXPECT_TRUE(result.ran) << kernel->name << ": " << result.refusal << result.failure;
    }
  }
}

// Every length from 1 to 2 tiles of keys + 1, with an equal, a shorter and a longer key side, as packed
// problems: one up to what form small holds, one of the last length.
struct Lengths {
  int turn;
  DType dtype;
};

class EveryLength : public testing::TestWithParam<Lengths> {};

TEST_P(EveryLength, RoundTwoTilesAgreesWithTheOracle) {
  constexpr int64_t kLongest = 2 * 96 + 1;
  constexpr const char* kMasks[] = {"", " causal=bottom-right", " window=9,3"};
  const int turn = GetParam().turn;
  for (const auto& [first, last] : {std::pair{int64_t{1}, kLongest - 1}, std::pair{kLongest, kLongest}}) {
    std::string cu_q = "0", cu_kv = "0";
    int64_t q = 0, kv = 0;
    for (int64_t n = first; n <= last; ++n) {
      // Over the three turns each length of q meets each of the three, and each length of keys comes up.
      const int64_t keys[] = {n, last + first - n, (n + 1) / 2};
      q += n;
      kv += keys[(n + turn) % 3];
      cu_q += cat(",", q);
      cu_kv += cat(",", kv);
    }
    const auto c = parse_case(
        cat("name=lengths head_dim=8 cu_seqlens_q=", cu_q, " cu_seqlens_kv=", cu_kv, kMasks[turn]));
    ASSERT_TRUE(c.ok());
    check_case(*c, GetParam().dtype, run_seed());
  }
}

// An emulator takes half a minute over each: it gets every second one, which is every turn and both dtypes.
std::vector<Lengths> all_lengths() {
  std::vector<Lengths> all{{0, DType::f32},  {1, DType::f32},  {2, DType::f32},
                           {0, DType::bf16}, {1, DType::bf16}, {2, DType::bf16}};
#ifdef TILEWISE_EMULATED
  for (size_t n = 1; n < all.size(); ++n) all.erase(all.begin() + static_cast<int64_t>(n));
#endif
  return all;
}

INSTANTIATE_TEST_SUITE_P(Turns, EveryLength, testing::ValuesIn(all_lengths()), [](const auto& lengths) {
  return cat(name_of(lengths.param.dtype), "_", lengths.param.turn);
});

}  // namespace
}  // namespace tilewise
