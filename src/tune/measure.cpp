#include "tune/measure.h"

#include <algorithm>
#include <cmath>
#include <ctime>

namespace tilewise::tune {
namespace {

constexpr double kShortestSample = 200e-6;  // seconds; the clock's own cost is then below 0.1 %
constexpr double kWarmup = 0.02;
// Calls up to this long find their caches as a call before left them. What stood between two samples left
// them to others, on a shared host to its other guests too: a megabyte from memory is 40 microseconds.
constexpr double kLongCall = 5e-3;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// One sample by the candidate's own clock, in seconds; NaN where it failed.
double timed_seconds(Candidate& candidate, Timing& timing) {
  const auto ms = candidate.timed();
  timing.status = ms.status();
  return ms ? 1e-3 * *ms : NAN;
}

// Warms a candidate up and returns the seconds of its fastest call.
double warm_up(Candidate& candidate, int calls, Timing& timing) {
  double fastest = INFINITY;
  const double start = wall_seconds();
  if (candidate.before) candidate.before();
  for (int i = 0; calls < 0 ? (i < 2 || (wall_seconds() - start < kWarmup && i < 1000)) : i < calls; ++i) {
    const double begin = wall_seconds();
    if (candidate.timed) {
      fastest = std::min(fastest, timed_seconds(candidate, timing));
      if (!timing.status) break;
      continue;
    }
    timing.status = candidate.run();
    if (!timing.status) break;
    fastest = std::min(fastest, wall_seconds() - begin);
    if (calls < 0 && i == 0 && fastest > 0.5) break;  // long calls are warm after one
  }
  if (candidate.after) candidate.after();
  return std::isfinite(fastest) ? fastest : 0;
}

void sample(Candidate& candidate, Timing& timing, bool warm, std::vector<double>& cpu_ms) {
  if (candidate.timed) {
    const double seconds = timed_seconds(candidate, timing);
    if (!timing.status) return;
    timing.samples_ms.push_back(1e3 * seconds);
    cpu_ms.push_back(0);
    return;
  }
  if (candidate.before) candidate.before();
  if (warm) timing.status = candidate.run();
  const double cpu = cpu_seconds(), begin = wall_seconds();
  for (int i = 0; i < timing.inner && timing.status; ++i) timing.status = candidate.run();
  const double wall_ms = 1e3 * (wall_seconds() - begin), used_ms = 1e3 * (cpu_seconds() - cpu);
  if (candidate.after) candidate.after();
  timing.samples_ms.push_back(wall_ms / timing.inner);
  cpu_ms.push_back(used_ms / timing.inner);
}

}  // namespace

double wall_seconds() { return seconds_of(CLOCK_MONOTONIC); }
double cpu_seconds() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

std::vector<Timing> measure(std::span<Candidate> candidates, const MeasureOptions& options) {
  std::vector<Timing> timings(candidates.size());
  std::vector<std::vector<double>> cpu_ms(candidates.size());
  std::vector<bool> warm(candidates.size());
  double a_round = 0;
  for (size_t c = 0; c < candidates.size(); ++c) {
    const double call = warm_up(candidates[c], options.warmup, timings[c]);
    if (call > 0) timings[c].inner = std::max(1, static_cast<int>(std::ceil(kShortestSample / call)));
    const bool once = options.warmup == 0 || call <= 0 || candidates[c].timed;
    if (once) timings[c].inner = 1;
    warm[c] = !once && call < kLongCall;
    a_round += call * (timings[c].inner + (warm[c] ? 1 : 0));
  }
  int rounds = options.repeats;
  if (rounds < 0) {
    const double fit = options.seconds * static_cast<double>(candidates.size()) / std::max(a_round, 1e-6);
    rounds = static_cast<int>(std::clamp(fit, 3.0, 101.0));
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      const size_t c = (static_cast<size_t>(round) + i) % candidates.size();
      if (timings[c].status) sample(candidates[c], timings[c], warm[c], cpu_ms[c]);
    }
  }
  for (size_t c = 0; c < candidates.size(); ++c) {
    Timing& t = timings[c];
    if (!t.status) t.samples_ms.clear();
    if (t.samples_ms.empty()) continue;
    t.repeats = static_cast<int>(t.samples_ms.size());
    t.min_ms = *std::min_element(t.samples_ms.begin(), t.samples_ms.end());
    t.max_ms = *std::max_element(t.samples_ms.begin(), t.samples_ms.end());
    t.median_ms = median_of(t.samples_ms);
    t.cpu_median_ms = median_of(cpu_ms[c]);
  }
  return timings;
}

}  // namespace tilewise::tune
