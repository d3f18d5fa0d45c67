#include "tune/search.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "api/context.h"
#include "core/text.h"

namespace tilewise::tune {

Status time_on_device(std::span<const PlannedCall> calls, std::span<Candidate> candidates,
                      std::deque<cuda::GraphTimer>* graphs) {
  constexpr double kLongEnough = 1.0, kMostCalls = 100;  // ms of a replay, and calls in it
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto capture = [&](int count) {
      return cuda::GraphTimer::capture(calls[i].plan().device_index, count,
                                       [call = &calls[i]](void* stream) { return call->run(stream); });
    };
    auto one = capture(1);
    if (!one) return one.status();
    if (auto warm = one->milliseconds(); !warm) return warm.status();
    const auto ms = one->milliseconds();
    if (!ms) return ms.status();
    auto many =
        capture(static_cast<int>(std::clamp(std::ceil(kLongEnough / std::max(*ms, 1e-3)), 1.0, kMostCalls)));
    if (!many) return many.status();
    graphs->push_back(std::move(*many));
    candidates[i].timed = [graph = &graphs->back()] { return graph->milliseconds(); };
  }
  return {};
}

Expected<std::vector<KernelTime>> time_kernels(const Context& context, const ProblemSize& size, int threads,
                                               uint64_t seed, const MeasureOptions& options) {
  const Problem problem = make_problem(size);
  Limits limits;
  limits.threads = threads;
  const Choice choice = choose(context.get()->request(problem, &limits));
  if (choice.usable == 0) return choice.status;
  auto data = ProblemData::make(context, problem, seed);
  if (!data) return data.status();
  if (size.direction == Direction::backward)
    if (Status status = data->fill_forward(context); !status) return status;

  constexpr double kHopeless = 10.0;
  double least = choice.candidates.front().rank_seconds;
  for (int i = 0; i < choice.usable; ++i)
    least = std::min(least, choice.candidates[static_cast<size_t>(i)].rank_seconds);
  std::vector<KernelTime> times;
  std::vector<PlannedCall> calls;
  for (int i = 0; i < choice.usable; ++i) {
    const Kernel& kernel = *choice.candidates[static_cast<size_t>(i)].kernel;
    if (kernel.target == Target::reference) continue;
    // A GPU's slowest rows take a hundred times the fastest one's time, and models do not err that much.
    if (is_cuda(kernel.target) && choice.candidates[static_cast<size_t>(i)].rank_seconds > kHopeless * least)
      continue;
    auto call = PlannedCall::make(context, problem, data->tensors(), kernel.name, threads);
    if (!call) return call.status();
    calls.push_back(std::move(*call));
    times.push_back({kernel.name, {}});
  }
  if (calls.empty()) return Status(Code::unsupported, "only the oracle's kernels can run it");
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < calls.size(); ++i)
    candidates.push_back({times[i].kernel, [call = &calls[i]] {
                            const Status status = call->run();
                            return status.ok() ? call->wait() : status;
                          }});
  std::deque<cuda::GraphTimer> graphs;
  if (context.get()->device.kind == TILEWISE_CUDA)
    if (Status s = time_on_device(calls, candidates, &graphs); !s.ok()) return s;
  auto timings = measure(candidates, options);
  for (size_t i = 0; i < times.size(); ++i) {
    if (!timings[i].status) return timings[i].status;
    times[i].timing = std::move(timings[i]);
  }
  std::stable_sort(times.begin(), times.end(), [](const KernelTime& a, const KernelTime& b) {
    return a.timing.median_ms < b.timing.median_ms;
  });
  return times;
}

void merge_lines(Tuning* tuning, const std::vector<TuningLine>& lines) {
  for (const TuningLine& line : lines) {
    const std::string key = to_string(line.key);
    std::erase_if(tuning->lines, [&](const TuningLine& old) { return to_string(old.key) == key; });
  }
  tuning->lines.insert(tuning->lines.end(), lines.begin(), lines.end());
}

std::string tuning_file_name(const std::string& device_name) {
  std::string name;
  for (char c : device_name) {
    const bool upper = c >= 'A' && c <= 'Z',
               plain = upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (plain)
      name += static_cast<char>(upper ? c - 'A' + 'a' : c);
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return (name.empty() ? "unknown" : name) + ".txt";
}

Expected<Tuning> read_tuning(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Tuning();
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto tuning = parse_tuning(text);
  if (!tuning) return Status(tuning.status().code(), path + ": " + tuning.status().message());
  return tuning;
}

Status write_tuning(const std::string& path, const Tuning& tuning) {
  const auto cannot = [&](const char* what) {
    return Status(Code::invalid, cat(path, " cannot be ", what, ": ", std::strerror(errno)));
  };
  std::error_code error;
  const std::string temporary = path + ".new";
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << tuning.to_string();
    file.flush();
    if (!file) {
      const Status status = cannot("written");
      std::filesystem::remove(temporary, error);
      return status;
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const Status status = cannot("replaced");
    std::filesystem::remove(temporary, error);
    return status;
  }
  return {};
}

}  // namespace tilewise::tune
