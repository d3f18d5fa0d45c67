#include "cli/bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "api/context.h"
#include "cli/bench_cuda.h"
#include "cli/bench_report.h"
#include "cli/device.h"
#include "cli/memory.h"
#include "cli/rivals/rival.h"
#include "cli/text.h"
#include "core/cost.h"
#include "tune/peak.h"
#include "tune/search.h"
#include "tune/work.h"

namespace tilewise::cli {
namespace {

// Everything that outlives a point of the grid.
class Bench {
 public:
  Bench(const BenchOptions& options, Context context, DeviceInfo device, std::string device_name)
      : options_(options),
        context_(std::move(context)),
        device_(device),
        device_name_(std::move(device_name)) {
    measuring_.warmup = options_.warmup;
    measuring_.repeats = options_.repeats;
    if (options_.with_rivals && !on_cuda()) rivals_ = find_rivals(options_.rivals);
    if (options_.with_rivals && on_cuda())
      notes_.push_back("other rivals on a GPU: scripts/gpu.sh times them");
  }

  int run(const std::vector<BenchPoint>& grid) {
    print_start();
    int worst = kDone;
    for (size_t i = 0; i < grid.size(); ++i) {
      progress(i + 1, grid.size(), grid[i]);
      worst = std::max(worst, run_point(grid[i]));
    }
    if (isatty(STDERR_FILENO)) std::fputs("\r\033[K", stderr);
    print_end();
    return worst;
  }

 private:
  bool on_cuda() const { return device_.kind == TILEWISE_CUDA; }
  bool table() const { return !options_.json && !options_.csv; }
  bool has(const char* way) const {
    return std::find(options_.directions.begin(), options_.directions.end(), way) !=
           options_.directions.end();
  }

  void print_start() const {
    if (options_.csv) std::puts(csv_header().c_str());
    if (!table()) return;
    const bool decode = has("decode");
    const bool only = options_.directions.size() == 1;
    const std::string products =
        on_cuda() ? "bf16 products on the matrix units" : "fp32 multiply-adds from registers";
    const std::string peak = decode && only ? "bytes read from memory"
                             : decode       ? products + ", of decode bytes read from memory"
                                            : products;
    std::printf("%s. Peak = %s, timed in turns with the calls.\n", device_text(device_).c_str(),
                peak.c_str());
    std::vector<std::string> names;
    for (const RivalEntry& entry : rivals_) {
      if (!entry.present()) continue;
      names.push_back(entry.name);
      const std::string what =
          entry.rival ? entry.rival->what() : "in a process of its own, in turns with this library";
      std::printf("%s: %s\n", entry.name.c_str(), what.c_str());
    }
    if (on_cuda() && wants_three_step() && !(decode && only)) {
      names.push_back("three-step");
      std::puts("three-step: this library's own row, with the scores in memory");
    }
    if (!names.empty()) std::puts("A rival's figure is its time over ours: above 1, ours is faster.");
    std::puts(table_header(names, !decode ? "GFLOP/s" : only ? "GB/s" : "GF|GB/s", has("step")).c_str());
    std::fflush(stdout);
  }

  void print_end() const {
    if (!table()) return;
    for (const RivalEntry& entry : rivals_)
      if (!entry.present()) std::printf("not run: %s: %s\n", entry.name.c_str(), entry.absent.c_str());
    for (const std::string& note : notes_) std::printf("not run: %s\n", note.c_str());
  }

  void progress(size_t at, size_t count, const BenchPoint& point) const {
    if (!isatty(STDERR_FILENO)) return;
    std::fprintf(stderr, "\r\033[K[%zu/%zu] %s", at, count, point.to_string().c_str());
    std::fflush(stderr);
  }

  // Names of the rows to time, null = the planner's choice.
  std::vector<std::string> kernels_of(const BenchPoint& point, const Problem& problem, int threads) const {
    if (point.kernel != "all") return {point.kernel == "auto" ? std::string() : point.kernel};
    Limits limits;
    limits.threads = threads;
    const Choice choice = choose(context_.get()->request(problem, &limits));
    std::vector<std::string> names;
    for (int i = 0; i < choice.usable; ++i) {
      const Kernel& kernel = *choice.candidates[static_cast<size_t>(i)].kernel;
      if (kernel.target != Target::reference) names.push_back(kernel.name);
    }
    return names;
  }

  // A forced kernel is held against its own instruction set, everything else against the machine's widest.
  Target target_of(const std::string& forced) const {
    const Kernel* row = forced.empty() ? nullptr : context_.get()->registry.row(-1, forced);
    if (!row || row->target == Target::reference) return tune::widest_target(device_.isa);
    return row->target;
  }

  int run_point(const BenchPoint& point) {
    const Problem problem = tune::make_problem(point.size);
    const int threads = point.threads > 0 ? point.threads : context_.threads();
    const int64_t need = tune::ProblemData::bytes_of(problem);
    const auto free = memory_for(point, device_);
    if (!free) return fail("bench", free.status());
    // Refused before the tensors are made, so that a refusal is quick.
    const auto kernels = kernels_of(point, problem, threads);
    std::vector<Plan> plans;
    int64_t scratch_before = 0;  // of a step's forward
    if (point.step) {
      Limits limits;
      limits.threads = threads;
      auto before = plan(tune::forward_of(problem), context_, limits);
      if (!before) return fail("bench", before.status());
      scratch_before = before->workspace_bytes;
    }
    for (const std::string& kernel : kernels) {
      Limits limits;
      limits.threads = threads;
      limits.kernel = kernel.empty() ? nullptr : kernel.c_str();
      auto made = plan(problem, context_, limits);
      if (!made) return fail("bench", made.status());
      const int64_t all = need + scratch_before + made->workspace_bytes;
      if (all > *free)
        return fail("bench", kCannotRun,
                    point.to_string() + " needs " + bytes_text(static_cast<double>(all)) +
                        " with its workspace, " + bytes_text(static_cast<double>(*free)) + " free");
      plans.push_back(*made);
    }
    auto data = tune::ProblemData::make(context_, problem, options_.seed);
    if (!data) return fail("bench", data.status());
    if (problem.direction == TILEWISE_BACKWARD)
      if (Status status = data->fill_forward(context_); !status) return fail("bench", status);
    int worst = kDone;
    for (const Plan& made : plans) worst = std::max(worst, run_kernel(point, problem, *data, made, threads));
    return worst;
  }

  int run_kernel(const BenchPoint& point, const Problem& problem, const tune::ProblemData& data,
                 const Plan& planned, int threads) {
    auto call = tune::PlannedCall::make(context_, problem, data.tensors(), planned.kernel, threads);
    if (!call) return fail("bench", call.status());

    BenchRow ours;
    ours.point = point;
    ours.device = device_name_;
    ours.kernel = planned.kernel;
    ours.threads = on_cuda() ? 1 : threads;
    ours.flops = tune::flops_of(problem);
    ours.bytes_ideal = ideal_bytes(problem);
    ours.workspace_bytes = planned.workspace_bytes;

    std::optional<tune::PlannedCall> before;
    if (point.step) {
      const Problem forward = tune::forward_of(problem);
      Tensors of_forward = data.tensors();
      of_forward.dout = of_forward.dq = of_forward.dk = of_forward.dv = {};
      auto made = tune::PlannedCall::make(context_, forward, of_forward, nullptr, threads);
      if (!made) return fail("bench", made.status());
      ours.kernel = made->plan().kernel + std::string(" + ") + ours.kernel;
      ours.flops += tune::flops_of(forward);
      ours.bytes_ideal += ideal_bytes(forward);
      ours.workspace_bytes += made->plan().workspace_bytes;
      before.emplace(std::move(*made));
    }
    const auto run_once = [&] {
      if (before)
        if (Status status = before->run(); !status) return status;
      return call->run();
    };
    Status ran = run_once();
    if (ran.ok()) ran = call->wait();
    if (!ran) return fail("bench", ran);

    if (on_cuda()) {
      if (!cuda_) cuda_ = std::make_unique<CudaBench>(context_, device_.index, measuring_);
      const auto rivals = cuda_->time(&ours, *call, data.tensors(), !point.decode && wants_three_step());
      if (!rivals) return fail("bench", rivals.status());
      print(ours, *rivals);
      return kDone;
    }
    Executor& executor = *context_.get()->executor;
    const Target target = target_of(point.kernel == "auto" ? std::string() : planned.kernel);
    std::optional<tune::FmaPeak> products;
    std::optional<tune::ReadPeak> reads;
    if (point.decode)
      reads.emplace(executor, target, threads, available_memory());
    else
      products.emplace(executor, target, threads);
    const tune::Candidate burst{"peak", [&] {
                                  if (reads)
                                    reads->run();
                                  else
                                    products->run();
                                  return Status();
                                }};
    std::vector<tune::Candidate> candidates{burst, {ours.kernel, run_once}, burst};
    std::vector<BenchRow> rows;  // of the rivals
    std::vector<std::unique_ptr<RivalCall>> calls;
    for (const RivalEntry& entry : rivals_) {
      BenchRow row = ours;
      row.rival = entry.name;
      row.kernel.clear();
      row.workspace_bytes = 0;
      auto bound = bind(entry, problem, point.step, data, threads, &row);
      row.not_run = bound ? "" : bound.status().message();
      calls.push_back(bound ? std::move(*bound) : nullptr);
      rows.push_back(row);
      if (RivalCall* rival = calls.back().get()) {
        candidates.push_back({entry.name, [rival] { return rival->run(); }, [rival] { rival->wake(); },
                              [rival] { rival->park(); }});
        candidates.push_back(burst);
      }
    }

    const auto timings = tune::measure(candidates, measuring_);
    std::vector<double> bursts, burst_cpu;
    for (size_t i = 0; i < candidates.size(); ++i)
      if (candidates[i].name == "peak") {
        bursts.insert(bursts.end(), timings[i].samples_ms.begin(), timings[i].samples_ms.end());
        burst_cpu.push_back(timings[i].cpu_median_ms);
      }
    ours.timing = timings[1];
    const double per_second = 1e3 / tune::median_of(bursts),
                 per_cpu_second = 1e3 / tune::median_of(burst_cpu);
    if (reads) {
      ours.peak_bytes = reads->bytes() * per_second;
      ours.peak_cpu_bytes = reads->bytes() * per_cpu_second;
    } else {
      ours.peak_flops = products->flops() * per_second;
      ours.peak_cpu_flops = products->flops() * per_cpu_second;
    }
    if (!ours.timing.status) return fail("bench", ours.timing.status);
    size_t next = 3;
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].peak_flops = ours.peak_flops;
      rows[r].peak_cpu_flops = ours.peak_cpu_flops;
      rows[r].peak_bytes = ours.peak_bytes;
      rows[r].peak_cpu_bytes = ours.peak_cpu_bytes;
      if (rivals_[r].foreign) time_foreign(rivals_[r], problem, point.step, planned, threads, &rows[r]);
      if (!calls[r]) continue;
      rows[r].timing = timings[next];
      next += 2;
      rows[r].times_ours = rows[r].timing.median_ms / ours.timing.median_ms;
      if (!rows[r].timing.status) rows[r].not_run = rows[r].timing.status.message();
    }
    print(ours, rows);
    return kDone;
  }

  bool wants_three_step() const {
    const auto& names = options_.rivals;
    return options_.with_rivals &&
           (names.empty() || std::find(names.begin(), names.end(), "three-step") != names.end());
  }

  void time_foreign(const RivalEntry& entry, const Problem& problem, bool step, const Plan& planned,
                    int threads, BenchRow* row) const {
    const auto times = entry.foreign(problem, step, planned.kernel, threads, options_.repeats, options_.seed);
    row->not_run = times ? "" : times.status().message();
    if (!times) return;
    row->kernel = times->what;
    row->timing.repeats = times->repeats;
    row->timing.min_ms = times->min_ms;
    row->timing.median_ms = times->median_ms;
    row->timing.max_ms = times->max_ms;
    row->times_ours = times->median_ms / times->ours_median_ms;
  }

  Expected<std::unique_ptr<RivalCall>> bind(const RivalEntry& entry, const Problem& problem, bool step,
                                            const tune::ProblemData& data, int threads, BenchRow* row) {
    if (is_quantized(static_cast<DType>(problem.dtype_k)))
      return Status(Code::unsupported, "takes no k and v with scales as they lie here");
    if (!entry.rival) return Status(Code::unsupported, entry.absent);  // or foreign: timed afterwards
    if (problem.page_size > 0) return Status(Code::unsupported, "reads no pages");
    row->kernel = entry.rival->what();
    row->workspace_bytes = entry.rival->scratch_bytes(problem, threads);
    if (const int64_t free = available_memory(); row->workspace_bytes > free)
      return Status(Code::out_of_memory, "needs " + bytes_text(static_cast<double>(row->workspace_bytes)) +
                                             ", " + bytes_text(static_cast<double>(free)) + " free");
    auto call = entry.rival->bind(problem, step, data.tensors(), threads, *context_.get()->executor);
    if (!call) return call;
    (*call)->wake();
    const Status status = (*call)->run();
    (*call)->park();
    if (!status) return status;
    const tilewise_tensor& ours =
        problem.direction == TILEWISE_BACKWARD ? data.tensors().dq : data.tensors().o;
    const double apart = largest_difference(ours, (*call)->result());
    if (!(apart <= (ours.dtype == TILEWISE_F32 ? 1e-3 : 5e-2)))
      return Status(Code::device, printed("its result differs from ours by %.2g", apart));
    return call;
  }

  void print(const BenchRow& ours, const std::vector<BenchRow>& rivals) {
    if (isatty(STDERR_FILENO)) std::fputs("\r\033[K", stderr);
    if (table()) {
      std::vector<BenchRow> present;
      for (size_t r = 0; r < rivals.size(); ++r) {
        if (r < rivals_.size() && !rivals_[r].present()) continue;
        present.push_back(rivals[r]);
        const std::string note = rivals[r].rival + ": " + rivals[r].not_run;
        if (!rivals[r].not_run.empty() && std::find(notes_.begin(), notes_.end(), note) == notes_.end())
          notes_.push_back(note);
      }
      std::puts(table_line(ours, present, has("step")).c_str());
    } else {
      const auto line = options_.json ? json_line : csv_line;
      std::puts(line(ours).c_str());
      for (const BenchRow& rival : rivals) std::puts(line(rival).c_str());
    }
    std::fflush(stdout);
  }

  const BenchOptions& options_;
  Context context_;
  DeviceInfo device_;
  std::vector<RivalEntry> rivals_;
  std::string device_name_;
  std::vector<std::string> notes_;
  tune::MeasureOptions measuring_;
  std::unique_ptr<CudaBench> cuda_;
};

Status check_names(const BenchOptions& options) {
  const auto known = rival_names();
  for (const std::string& name : options.rivals) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string accepted;
    for (const std::string& one : known) accepted += (accepted.empty() ? "" : ", ") + one;
    return Status(Code::invalid,
                  "--rivals is \"" + name + "\"; accepted: nothing (all of them), " + accepted);
  }
  return {};
}

}  // namespace

int run_bench(const BenchOptions& given) {
  BenchOptions options = given;
  if (Status status = check_names(options); !status) return fail("bench", status);
  const auto name = parse_device(options.device);
  if (!name) return fail("bench", name.status());
  const auto& ways = options.directions;
  if ((name->reference || name->kind != TILEWISE_CPU) &&
      std::find(ways.begin(), ways.end(), "step") != ways.end())
    return fail("bench", kCannotRun, "--direction step is timed with --device cpu; given: " + options.device);
  if (options.device == "reference") options.kernels = {"forward_reference_f64,backward_reference_f64"};
  const auto grid = make_grid(options);
  if (!grid) return fail("bench", grid.status());
  auto device = DeviceInfo::query(name->kind, name->index);
  if (!device) return fail("bench", device.status());
  // As an application would have it (TILEWISE_TUNING, TILEWISE_KERNEL), with room for every thread count of
  // the grid.
  const auto environment = Context::from_environment();
  if (!environment) return fail("bench", environment.status());
  const tilewise_context& given_by = *environment->get();
  const std::string tuning = given_by.tuning ? given_by.tuning->to_string() : std::string();
  ContextOptions context_options;
  context_options.device_kind = name->kind;
  context_options.device_index = name->index;
  context_options.threads =
      static_cast<int32_t>(*std::max_element(options.threads.begin(), options.threads.end()));
  if (context_options.threads == 0) context_options.threads = environment->threads();
  if (!tuning.empty()) context_options.tuning_text = tuning.c_str();
  if (!given_by.forced.empty()) context_options.kernel = given_by.forced.c_str();
  auto context = Context::create(context_options);
  if (!context) return fail("bench", context.status());
  return Bench(options, std::move(*context), *device, name->to_string()).run(*grid);
}

}  // namespace tilewise::cli
