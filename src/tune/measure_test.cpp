#include "tune/measure.h"

#include <gtest/gtest.h>

#include <string>

#include "core/executor.h"
#include "cpu/features.h"
#include "cpu/threads.h"
#include "tune/peak.h"

namespace tilewise::tune {
namespace {

TEST(Measure, MedianOfOddEvenAndNone) {
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median_of({}), 0);
}

void busy(double seconds) {
  const double start = wall_seconds();
  while (wall_seconds() - start < seconds) {
  }
}

TEST(Measure, CandidatesTakeTurnsAndTheFirstMovesOn) {
  std::string order;
  const auto candidate = [&](char letter) {
    return Candidate{std::string(1, letter), [&order, letter] {
                       order += letter;
                       busy(6e-3);
                       return Status();
                     }};
  };
  std::vector<Candidate> candidates{candidate('a'), candidate('b'), candidate('c')};
  MeasureOptions options;
  options.warmup = 1, options.repeats = 4;
  const auto timings = measure(candidates, options);
  EXPECT_EQ(order,
            "abc"
            "abc"
            "bca"
            "cab"
            "abc");
  for (const Timing& t : timings) {
    EXPECT_EQ(t.repeats, 4);
    EXPECT_EQ(t.samples_ms.size(), 4u);
    EXPECT_GE(t.min_ms, 6);
    EXPECT_LE(t.min_ms, t.median_ms);
    EXPECT_LE(t.median_ms, t.max_ms);
  }
}

// A call of a fraction of a millisecond takes a third longer where it finds nothing in the caches.
TEST(Measure, WhatTheCachesMatterToIsTimedAfterACallOfItsOwn) {
  std::string order;
  std::vector<Candidate> candidates;
  for (const char letter : {'a', 'b'})
    candidates.push_back({std::string(1, letter), [&order, letter] {
                            order += letter;
                            busy(3e-4);
                            return Status();
                          }});
  MeasureOptions options;
  options.warmup = 1, options.repeats = 2;
  for (const Timing& t : measure(candidates, options)) EXPECT_EQ(t.samples_ms.size(), 2u);
  EXPECT_EQ(order,
            "ab"
            "aabb"
            "bbaa");
}

TEST(Measure, ShortCallsAreTimedInBatches) {
  std::vector<Candidate> candidates{{"short", [] {
                                       busy(2e-6);
                                       return Status();
                                     }}};
  MeasureOptions options;
  options.repeats = 3;
  const Timing t = measure(candidates, options)[0];
  EXPECT_GE(t.inner, 5);
  EXPECT_GE(t.median_ms, 0.002);
  EXPECT_LT(t.min_ms, 0.2);  // of one call, not of the batch
}

TEST(Measure, AFailureIsReportedAndTheOthersGoOn) {
  int calls = 0;
  std::vector<Candidate> candidates{{"bad",
                                     [&] {
                                       ++calls;
                                       return Status(Code::device, "broken");
                                     }},
                                    {"good", [] {
                                       busy(3e-4);
                                       return Status();
                                     }}};
  MeasureOptions options;
  options.repeats = 3;
  const auto timings = measure(candidates, options);
  EXPECT_EQ(timings[0].status.message(), "broken");
  EXPECT_EQ(timings[0].repeats, 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(timings[1].repeats, 3);
}

TEST(Measure, BeforeAndAfterAreOutsideTheSample) {
  int awake = 0, runs_asleep = 0;
  std::vector<Candidate> candidates{{"rival",
                                     [&] {
                                       runs_asleep += awake == 0;
                                       return Status();
                                     },
                                     [&] {
                                       awake = 1;
                                       busy(1e-3);
                                     },
                                     [&] { awake = 0; }}};
  MeasureOptions options;
  options.repeats = 3;
  const Timing t = measure(candidates, options)[0];
  EXPECT_EQ(runs_asleep, 0);
  EXPECT_EQ(awake, 0);
  EXPECT_LT(t.min_ms, 0.5);
}

TEST(Peak, EveryInstructionSetOfTheMachineGivesARate) {
  ThreadPool pool(2);
  const uint64_t isa = cpu_isa();
  for (Target target : {Target::scalar, Target::avx2, Target::avx512, Target::avx512bf16, Target::neon}) {
    if (target == Target::avx2 && !(isa & TILEWISE_ISA_AVX2)) continue;
    if (target == Target::avx512 && !(isa & TILEWISE_ISA_AVX512)) continue;
    if (target == Target::avx512bf16 && !(isa & TILEWISE_ISA_AVX512BF16)) continue;
    if (target == Target::neon && !(isa & TILEWISE_ISA_NEON)) continue;
    FmaPeak one(pool, target, 1), two(pool, target, 2);
    one.run();
    two.run();
    EXPECT_GT(one.flops(), 0);
    EXPECT_GT(two.flops(), 0);
  }
  EXPECT_EQ(widest_target(TILEWISE_ISA_SCALAR | TILEWISE_ISA_AVX2), Target::avx2);
  EXPECT_EQ(widest_target(TILEWISE_ISA_SCALAR | TILEWISE_ISA_AVX2 | TILEWISE_ISA_AVX512), Target::avx512);
  EXPECT_EQ(widest_target(TILEWISE_ISA_SCALAR), Target::scalar);
}

TEST(Peak, ReadingCountsWhatItReads) {
  ThreadPool pool(1);
  ReadPeak peak(pool, widest_target(cpu_isa()), 1, int64_t{16} << 20);
  peak.run();
  EXPECT_EQ(peak.bytes(), 2 << 20);
}

}  // namespace
}  // namespace tilewise::tune
