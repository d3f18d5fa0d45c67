// What the machine can do at most, measured: multiply-adds from registers, and bytes read from memory.
// Both are bursts of a few milliseconds, to be timed in turns with what is compared to them.
#ifndef TILEWISE_TUNE_PEAK_H_
#define TILEWISE_TUNE_PEAK_H_

#include <cstdint>
#include <memory>

#include "core/executor.h"
#include "core/kernel.h"
#include "core/pages.h"

namespace tilewise::tune {

// The widest instruction set of fp32 among TILEWISE_ISA bits that a peak can be measured for; scalar where
// there is none.
Target widest_target(uint64_t isa);

// Independent multiply-adds in the registers of `target`, one task for each of `threads` workers: of fp32,
// or, of avx512bf16, dots of bf16 pairs.
class FmaPeak {
 public:
  FmaPeak(Executor& executor, Target target, int threads);
  void run();
  double flops() const;  // of one run

 private:
  Executor& executor_;
  double (*kernel_)(int64_t);  // runs a number of rounds; the flops of one round for -1
  int threads_;
  int64_t rounds_ = 1;
};

// Reads a buffer that is far larger than the caches (512 MiB, less where memory is short), split over
// `threads`.
class ReadPeak {
 public:
  ReadPeak(Executor& executor, Target target, int threads, int64_t memory_bytes);
  ReadPeak(const ReadPeak&) = delete;
  ReadPeak& operator=(const ReadPeak&) = delete;
  void run();
  double bytes() const { return static_cast<double>(bytes_); }

 private:
  Executor& executor_;
  double (*kernel_)(const float*, int64_t);
  int threads_;
  int64_t bytes_;
  Pages buffer_;
};

}  // namespace tilewise::tune
#endif  // TILEWISE_TUNE_PEAK_H_
