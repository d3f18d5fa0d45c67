// CUDA rows on long problems and on every length to three tiles of keys, at the head dimensions that they are
// built for, held against the oracle at chosen rows and keys. Skipped with the reason where there is no
// device.
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "core/text.h"
#include "tests/support/device_call.h"
#include "tests/support/long_problem.h"

namespace tilewise {
namespace {

using namespace testing_support;

struct Width {
  int64_t dim, dim_v;
  DType dtype;

  std::string words() const { return cat(" head_dim=", dim, " head_dim_v=", dim_v); }
  // Of one direction: f32 at the largest widths has the row for everything alone.
  int least_rows() const { return dtype == DType::f32 && dim > 128 ? 1 : 2; }
};

std::vector<Width> widths() {
  std::vector<Width> all;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const auto& [dim, dim_v] : {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}})
      all.push_back({dim, dim_v, dtype});
  }
  return all;
}

class CudaLarge : public CudaTest, public testing::WithParamInterface<Width> {
 protected:
  static void check(const std::string& line) {
    const int ran =
        check_long(line + GetParam().words(), GetParam().dtype, run_seed(), Which::all, &*cuda_device(), 16);
    EXPECT_GE(ran, 2 * GetParam().least_rows()) << line;
  }
};
INSTANTIATE_TEST_SUITE_P(Widths, CudaLarge, testing::ValuesIn(widths()), [](const auto& width) {
  return cat("d", width.param.dim, "_", width.param.dim_v, "_", name_of(width.param.dtype));
});

// One row past whole tiles, and two sequences of a group of heads.
TEST_P(CudaLarge, Full) { check("name=full batch=2 heads_q=2 heads_kv=1 seqlen_q=1025"); }

TEST_P(CudaLarge, Causal) { check("name=causal heads_q=2 heads_kv=1 seqlen_q=2048 causal=bottom-right"); }

// More tiles of keys than blocks on any device: each block takes several, and heads of a group are walked
// together.
TEST_P(CudaLarge, CausalGroupedHeads) {
  check("name=grouped heads_q=24 heads_kv=12 seqlen_q=1537 causal=bottom-right");
}

TEST_P(CudaLarge, CausalWithMoreKeys) {
  check("name=offset heads_q=2 seqlen_q=1100 seqlen_kv=2047 causal=bottom-right");
}

TEST_P(CudaLarge, Window) { check("name=window heads_q=2 seqlen_q=2049 window=700,3"); }

// Lengths 1 to 193 as one packed problem, with a key side that over the three turns is equal, longer or
// shorter for each of them.
void check_lengths(const Width& width, int turn, const char* mask) {
  constexpr int64_t kLongest = 193;
  std::string cu_q = "0", cu_kv = "0";
  int64_t q = 0, kv = 0;
  std::vector<RowId> queries, keys;
  const auto choose = [](std::vector<RowId>& rows, int64_t batch, int64_t length) {
    for (const int64_t row : {int64_t{63}, int64_t{64}, int64_t{128}})
      if (row + 1 < length) rows.push_back({batch, row});
    rows.push_back({batch, length - 1});
  };
  for (int64_t n = 1; n <= kLongest; ++n) {
    const int64_t sides[] = {n, kLongest + 1 - n, (n + 1) / 2}, of_keys = sides[(n + turn) % 3];
    choose(queries, n - 1, n);
    choose(keys, n - 1, of_keys);
    cu_q += cat(",", q += n);
    cu_kv += cat(",", kv += of_keys);
  }
  const Case c = parsed(cat("name=lengths heads_q=2 heads_kv=1", width.words(), " cu_seqlens_q=", cu_q,
                            " cu_seqlens_kv=", cu_kv, mask));
  SCOPED_TRACE(cat(c.text, " seed ", run_seed()));
  CaseData data(c, width.dtype, run_seed());
  int ran = 0;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    data.poison_outputs(direction, Poison::nan);
    const Expectation answer = direction == Direction::forward
                                   ? expect_forward(data.params(direction), queries)
                                   : expect_backward(data.params(direction), queries, keys);
    std::vector<const char*> names;
    for (const Kernel* kernel : kernels_of(direction, true)) names.push_back(kernel->name);
    names.push_back(nullptr);  // last the planner's choice, whose o and lse the backward gets
    for (const char* name : names) {
      SCOPED_TRACE(name != nullptr ? name : "the planner's choice");
      const RunResult result =
          run_kernel(shared_context(), name, data, direction, {1, Poison::nan, &*cuda_device()});
      ASSERT_EQ(result.failure, "");
      if (!result.ran) continue;
      if (name != nullptr) ++ran;
      const Comparison worst = compare_outputs(data, direction, answer);
      EXPECT_TRUE(worst.passed()) << worst.text;
    }
  }
  EXPECT_GE(ran, 2 * width.least_rows());
}

TEST_P(CudaLarge, EveryLength) { check_lengths(GetParam(), 0, ""); }
TEST_P(CudaLarge, EveryLengthCausal) { check_lengths(GetParam(), 1, " causal=bottom-right"); }
TEST_P(CudaLarge, EveryLengthWindow) { check_lengths(GetParam(), 2, " window=9,3"); }

// Faults of other kernels at their records' lengths (numbers as in cases/faults.txt), on every row that takes
// them.
class CudaLargeFaults : public CudaTest {};

TEST_F(CudaLargeFaults, F04_AWindowOfEveryEarlierKeyIsCausalBitForBit) {
  const std::string sizes =
      "name=window heads_q=2 seqlen_q=16384 head_dim=128 poison_unseen=0 deterministic=1 ";
  for (const DType dtype : {DType::f16, DType::bf16}) {
    CaseData causal(parsed(sizes + "causal=bottom-right"), dtype, 5),
        window(parsed(sizes + "window=16383,0"), dtype, 5);
    const RunOptions on_device{1, Poison::nan, &*cuda_device()};
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      int ran = 0;
      std::vector<const char*> names;
      // Without what keeps all scores, and plain FMA, which takes seconds.
      for (const Kernel* kernel : kernels_of(direction, true))
        if (kernel->target != Target::simt && kernel->form != Form::standard) names.push_back(kernel->name);
      names.push_back(nullptr);
      for (const char* name : names) {  // last the planner's choice, whose o and lse the backward gets
        SCOPED_TRACE(name != nullptr ? name : "the planner's choice");
        bool taken = true;
        for (CaseData* data : {&causal, &window}) {
          const RunResult result = run_kernel(shared_context(), name, *data, direction, on_device);
          ASSERT_EQ(result.failure, "");
          taken = taken && result.ran;
        }
        if (!taken) continue;
        ++ran;
        const auto a = causal.outputs(direction), b = window.outputs(direction);
        for (size_t n = 0; n < a.size(); ++n)
          EXPECT_EQ(std::memcmp(a[n].second->memory(), b[n].second->memory(),
                                static_cast<size_t>(a[n].second->memory_bytes())),
                    0)
              << a[n].first;
      }
      EXPECT_GT(ran, 2);
    }
  }
}

TEST_F(CudaLargeFaults, E09_ChunksOfALongPrefill) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t start : {0, 700, 1399}) {
      check_long(
          cat("name=chunk heads_q=2 seqlen_q=512 seqlen_kv=2000 head_dim=64 causal=bottom-right q_offset=",
              start),
          dtype, run_seed(), Which::all, &*cuda_device());
    }
  }
}

TEST_F(CudaLargeFaults, F08_AWindowOf1024) {
  check_long("name=window heads_q=4 seqlen_q=2048 head_dim=64 window=1024,0", DType::f16, run_seed(),
             Which::all, &*cuda_device());
  check_long("name=window heads_q=64 seqlen_q=2048 head_dim=64 window=1024,0", DType::f16, run_seed(),
             Which::choice, &*cuda_device(), 6);
}

TEST_F(CudaLargeFaults, L01_CausalAndABiasOfDistances) {
  check_long("name=distance seqlen_q=1025 head_dim=64 causal=bottom-right bias=11qk:qk:1", DType::bf16,
             run_seed(), Which::all, &*cuda_device());
}

TEST_F(CudaLargeFaults, O05_TheBackwardOfASoftcapReturns) {
  check_long("name=softcap batch=2 heads_q=32 seqlen_q=1024 head_dim=128 causal=bottom-right softcap=10",
             DType::f16, run_seed(), Which::choice, &*cuda_device(), 6);
  check_long("name=softcap heads_q=2 seqlen_q=1024 head_dim=128 causal=bottom-right softcap=10", DType::f16,
             run_seed(), Which::all, &*cuda_device());
}

}  // namespace
}  // namespace tilewise
