// The grid of a bench command: one point for each combination of what its options list.
#ifndef TILEWISE_CLI_BENCH_GRID_H_
#define TILEWISE_CLI_BENCH_GRID_H_

#include "cli/bench.h"
#include "tilewise/plan.h"
#include "tilewise/status.h"
#include "tune/problem_data.h"

namespace tilewise::cli {

struct BenchPoint {
  tune::ProblemSize size;
  int threads = 0;      // 0 = the context's
  std::string kernel;   // "auto", "all", or a row's name
  bool decode = false;  // few queries over a cache, held against the memory's bandwidth
  bool step = false;    // of training: a forward, then the backward of what it left (size.direction)

  const char* way() const {
    if (decode) return "decode";
    if (step) return "step";
    return size.direction == Direction::backward ? "backward" : "forward";
  }
  std::string to_string() const;  // "forward f32 1x1024x12x64 causal"
};

// Lengths vary fastest. A refusal names the option, what was given and what is accepted; Code::unsupported
// where the command knows the value and this version cannot run it.
Expected<std::vector<BenchPoint>> make_grid(const BenchOptions& options);

// Memory that is free for a point's tensors, on the host and on the device; Code::out_of_memory where they
// need more: allocating them may succeed and filling them end the process.
Expected<int64_t> memory_for(const BenchPoint& point, const DeviceInfo& device);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_BENCH_GRID_H_
