// What a bench command prints: a table for people, or JSON lines, or CSV, with the same figures.
#ifndef TILEWISE_CLI_BENCH_REPORT_H_
#define TILEWISE_CLI_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "cli/bench_grid.h"
#include "tune/measure.h"

namespace tilewise::cli {

struct BenchRow {
  BenchPoint point;
  std::string device;
  std::string kernel;   // the row of the table that ran, or what of a rival ran
  std::string rival;    // empty = ours
  std::string not_run;  // why there is no figure
  int threads = 1;
  tune::Timing timing;
  double flops = 0, peak_flops = 0;           // of one call; a second
  double peak_cpu_flops = 0;                  // a second of processor time, all threads together
  double peak_bytes = 0, peak_cpu_bytes = 0;  // read from memory, likewise: what decode is held against
  double bytes_ideal = 0;
  int64_t workspace_bytes = 0;
  double times_ours = 0;  // of a rival: its median over ours, in the process where both were timed

  double tflops() const { return timing.median_ms > 0 ? flops / timing.median_ms * 1e-9 : 0; }
  double percent_of_peak() const {
    if (peak_bytes > 0) return 100 * gbps() * 1e9 / peak_bytes;
    return peak_flops > 0 ? 100 * tflops() * 1e12 / peak_flops : 0;
  }
  // The same by processor time: what others on the machine cannot change, and waiting threads do not lower.
  double percent_of_peak_cpu() const {
    if (peak_cpu_bytes > 0 && timing.cpu_median_ms > 0)
      return 100 * bytes_ideal / (1e-3 * timing.cpu_median_ms) / peak_cpu_bytes;
    return peak_cpu_flops > 0 && timing.cpu_median_ms > 0
               ? 100 * flops / (1e-3 * timing.cpu_median_ms) / peak_cpu_flops
               : 0;
  }
  double gbps() const { return timing.median_ms > 0 ? bytes_ideal / timing.median_ms * 1e-6 : 0; }
};

std::string json_line(const BenchRow& row);
std::string csv_header();
std::string csv_line(const BenchRow& row);

// One line a point: ours, then what each rival takes relative to ours (above 1: ours is faster).
// `rate`: what the column of rates holds: GFLOP/s, GB/s of a decode, or both. `steps`: some lines are steps.
std::string table_header(const std::vector<std::string>& rivals, const char* rate = "GFLOP/s",
                         bool steps = false);
std::string table_line(const BenchRow& ours, const std::vector<BenchRow>& rivals, bool steps = false);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_BENCH_REPORT_H_
