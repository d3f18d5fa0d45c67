// Timing: several candidates in turns, in one process, so that what disturbs the machine disturbs all of
// them. A peak is a candidate like any other; ratios of medians are what to report, absolute times are not.
#ifndef TILEWISE_TUNE_MEASURE_H_
#define TILEWISE_TUNE_MEASURE_H_

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tilewise/status.h"

namespace tilewise::tune {

struct Candidate {
  std::string name;
  std::function<Status()> run;     // one call; what is timed
  std::function<void()> before{};  // untimed, around each sample: wake or park a rival's threads
  std::function<void()> after{};
  // Milliseconds of one call by a clock of its own (a GPU's); replaces `run` and the wall clock.
  std::function<Expected<double>()> timed{};
};

// Of one call, milliseconds. A sample is the mean of `inner` calls in a row: calls too short for the clock.
struct Timing {
  Status status;  // of the first call that failed; the rest is then empty
  int repeats = 0, inner = 1;
  double min_ms = 0, median_ms = 0, max_ms = 0;
  double cpu_median_ms = 0;  // of all threads of the process
  std::vector<double> samples_ms{};
};

struct MeasureOptions {
  int warmup = -1;       // calls of each before the first sample; -1 = until 20 ms have passed, at least 2
  int repeats = -1;      // samples of each; -1 = as many as fit `seconds`, within [3, 101]
  double seconds = 0.4;  // for each candidate
};

// Round after round, each candidate once a round, the first one moving on by one a round.
std::vector<Timing> measure(std::span<Candidate> candidates, const MeasureOptions& options = {});

double median_of(std::vector<double> values);  // 0 where empty
double wall_seconds();                         // monotonic
double cpu_seconds();                          // of the process, all threads

}  // namespace tilewise::tune
#endif  // TILEWISE_TUNE_MEASURE_H_
