// Long problems, both sides of each power of two, held against the oracle at chosen rows and keys.
#include <gtest/gtest.h>

#include <cstring>

#include "core/text.h"
#include "tests/support/long_problem.h"

namespace tilewise {
namespace {

using namespace testing_support;

void check(const std::string& line, uint64_t seed, Which which = Which::all) {
  check_long(line, parsed(line).dtypes[0], seed, which);
}

TEST(Large, BothSidesOfPowersOfTwo) {
  for (int64_t power = 256; power <= 4096; power *= 2) {
    for (const int64_t length : {power - 1, power, power + 1}) {
      const std::string size = cat("name=power seqlen_q=", length, " head_dim=32");
      check(cat(size, " dtype=f32"), run_seed());
      check(cat(size, " dtype=bf16 causal=bottom-right"), run_seed());
    }
  }
}

TEST(Large, DecodeOverLongKeys) {
  for (const int64_t keys : {8191, 8192, 8193, 40000}) {
    check(cat("name=decode batch=2 heads_q=4 heads_kv=2 seqlen_q=1 head_dim=64 dtype=f32 seqlen_kv=", keys),
          run_seed());
  }
}

TEST(Large, WindowsAndSegmentsThatSkip) {
  check("name=window heads_q=2 seqlen_q=8000 head_dim=64 causal=bottom-right window=1024,-1 dtype=f32",
        run_seed());
  check("name=segments heads_q=2 seqlen_q=6000 head_dim=64 causal=bottom-right segments=sorted:9 dtype=bf16",
        run_seed());
  check("name=prefix heads_q=2 seqlen_q=5000 head_dim=64 kv_ranges=prefix:700 dtype=f32", run_seed());
}

TEST(Large, GroupsAndHeadDims) {
  check("name=gqa heads_q=8 heads_kv=2 seqlen_q=2000 head_dim=128 causal=bottom-right dtype=f32 dlse=1",
        run_seed());
  check("name=d256 heads_q=2 seqlen_q=1500 head_dim=256 dtype=bf16", run_seed());
}

// Faults of other kernels at their records' lengths (numbers as in cases/faults.txt).
TEST(Large, F04_AWindowOfEveryEarlierKeyIsCausalBitForBit) {
  const std::string sizes = "name=window seqlen_q=16384 head_dim=128 dtype=f16 poison_unseen=0 ";
  CaseData causal(parsed(sizes + "causal=bottom-right"), DType::f16, 5),
      window(parsed(sizes + "window=16383,0"), DType::f16, 5);
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (CaseData* data : {&causal, &window}) {  // the backward on o and lse of the forward
      ASSERT_EQ(run_kernel(shared_context(), nullptr, *data, direction, {2, Poison::nan}).failure, "");
    }
    const auto a = causal.outputs(direction), b = window.outputs(direction);
    for (size_t n = 0; n < a.size(); ++n) {
      EXPECT_EQ(std::memcmp(a[n].second->memory(), b[n].second->memory(),
                            static_cast<size_t>(a[n].second->memory_bytes())),
                0)
          << a[n].first;
    }
  }
}

TEST(Large, E09_ChunksOfALongPrefill) {
  for (const int64_t start : {0, 700, 1399}) {
    check(cat("name=chunk heads_q=2 seqlen_q=512 seqlen_kv=2000 head_dim=64 causal=bottom-right dtype=f32 "
              "q_offset=",
              start),
          run_seed());
  }
}

TEST(Large, F08_AWindowOf1024) {
  check("name=window heads_q=4 seqlen_q=2048 head_dim=64 window=1024,0 dtype=f16", run_seed());
  check("name=window heads_q=64 seqlen_q=2048 head_dim=64 window=1024,0 dtype=f16", run_seed(),
        Which::choice);
}

TEST(Large, L01_CausalAndABiasOfDistances) {
  check("name=distance seqlen_q=1025 head_dim=64 dtype=bf16 causal=bottom-right bias=11qk:qk:1", run_seed());
}

TEST(Large, O05_TheBackwardOfASoftcapReturns) {
  check("name=softcap batch=2 heads_q=32 seqlen_q=1024 head_dim=128 causal=bottom-right softcap=10 dtype=f16",
        run_seed(), Which::choice);
}

}  // namespace
}  // namespace tilewise
