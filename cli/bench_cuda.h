// CudaBench: a call on a GPU in turns with the device's peak and, where asked for, with this library's own
// three-step row.
#ifndef TILEWISE_CLI_BENCH_CUDA_H_
#define TILEWISE_CLI_BENCH_CUDA_H_

#include <deque>
#include <optional>
#include <vector>

#include "cli/bench_report.h"
#include "cuda/runtime.h"
#include "tune/measure.h"
#include "tune/search.h"

namespace tilewise::cli {

class CudaBench {
 public:
  CudaBench(const Context& context, int device, const tune::MeasureOptions& options)
      : context_(context), device_(device), options_(options) {}

  // Fills in the times and the peak of `ours`. Returns the row of three steps where that is asked for.
  Expected<std::vector<BenchRow>> time(BenchRow* ours, const tune::PlannedCall& call, const Tensors& tensors,
                                       bool three_step);

 private:
  Status add_three_step(const Problem& problem, const Tensors& tensors,
                        std::optional<tune::PlannedCall>* standard, std::vector<tune::Candidate>* candidates,
                        std::deque<cuda::GraphTimer>* graphs, BenchRow* row) const;

  const Context& context_;
  int device_;
  tune::MeasureOptions options_;
  std::optional<cuda::Peak> peak_;
};

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_BENCH_CUDA_H_
