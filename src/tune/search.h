// Search: which kernel is fastest for a problem, measured; and the tuning file that remembers it for plan/.
#ifndef TILEWISE_TUNE_SEARCH_H_
#define TILEWISE_TUNE_SEARCH_H_

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cuda/runtime.h"
#include "plan/tuning.h"
#include "tune/measure.h"
#include "tune/problem_data.h"

namespace tilewise::tune {

struct KernelTime {
  std::string kernel;
  Timing timing;
};

// Gives each candidate a graph of its call, replayed and timed by the device: enough calls a replay for its
// clock. `graphs` owns them.
Status time_on_device(std::span<const PlannedCall> calls, std::span<Candidate> candidates,
                      std::deque<cuda::GraphTimer>* graphs);

// Every kernel that does not refuse, the oracle's rows aside and those of a GPU that the cost model puts far
// behind, timed in turns; fastest median first. Where none can run: the planner's reasons.
Expected<std::vector<KernelTime>> time_kernels(const Context& context, const ProblemSize& size, int threads,
                                               uint64_t seed, const MeasureOptions& options = {});

// The measured lines over those of the same key; the rest of `tuning` stays.
void merge_lines(Tuning* tuning, const std::vector<TuningLine>& lines);

// "intel-r-xeon-r-processor.txt" for a device's name.
std::string tuning_file_name(const std::string& device_name);
// What a file holds; nothing where there is no such file.
Expected<Tuning> read_tuning(const std::string& path);
// Through a temporary file beside `path` and a rename, so that `path` is either as before or whole.
Status write_tuning(const std::string& path, const Tuning& tuning);

}  // namespace tilewise::tune
#endif  // TILEWISE_TUNE_SEARCH_H_
