#include "cli/tune.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "cli/bench_grid.h"
#include "cli/device.h"
#include "cli/safetensors.h"
#include "cli/text.h"
#include "tune/search.h"

namespace tilewise::cli {
namespace {

BenchOptions as_bench(const TuneOptions& t) {
  BenchOptions b;
  b.directions = t.directions, b.dtypes = t.dtypes, b.causal = t.causal;
  b.batch = t.batch, b.heads = t.heads, b.heads_kv = t.heads_kv, b.head_dim = t.head_dim, b.seqlen = t.seqlen;
  b.threads = {t.threads};
  b.seed = t.seed;
  return b;
}

}  // namespace

int run_tune(const TuneOptions& options) {
  // `auto` stays on the CPU: a file of measured choices is made for a device that was named.
  const auto name = parse_device(options.device == "auto" ? "cpu" : options.device);
  if (!name) return fail("tune", name.status());
  if (name->reference)
    return fail("tune", kBadInput, "--device is \"" + options.device + "\"; accepted: auto, cpu, cuda[:n]");
  if (!(options.seconds > 0) || options.seconds > 3600)
    return fail("tune", kBadInput, printed("--seconds is %g; accepted: above 0, to 3600", options.seconds));
  if (options.tokens && *options.tokens < 1)
    return fail("tune", kBadInput,
                printed("--tokens is %lld; accepted: 1 or more", static_cast<long long>(*options.tokens)));
  BenchOptions axes = as_bench(options);
  const auto grid = make_grid(axes);
  if (!grid) return fail("tune", grid.status());
  const auto device = DeviceInfo::query(name->kind, name->index);
  if (!device) return fail("tune", device.status());
  ContextOptions context_options;
  context_options.device_kind = name->kind;
  context_options.device_index = name->index;
  context_options.threads = static_cast<int32_t>(options.threads);
  const auto context = Context::create(context_options);
  if (!context) return fail("tune", context.status());

  const std::string path =
      options.output.empty() ? "tuning/" + tune::tuning_file_name(device->name) : options.output;
  auto tuning = tune::read_tuning(path);
  if (!tuning) return fail("tune", tuning.status());
  std::error_code ignored;
  if (options.output.empty() && !options.dry_run) std::filesystem::create_directories("tuning", ignored);
  if (!options.dry_run)
    if (Status status = can_write(path); !status) return fail("tune", status);  // before the work
  tuning->device = device->name;
  tuning->library = tilewise_version();

  std::vector<TuningLine> lines;
  for (size_t i = 0; i < grid->size(); ++i) {
    BenchPoint point = (*grid)[i];
    if (options.tokens)
      point.size.batch = std::max<int64_t>(1, *options.tokens / std::max<int64_t>(1, point.size.seqlen_q));
    if (isatty(STDERR_FILENO)) {
      std::fprintf(stderr, "\r\033[K[%zu/%zu] %s", i + 1, grid->size(), point.to_string().c_str());
      std::fflush(stderr);
    }
    if (const auto free = memory_for(point, *device); !free) return fail("tune", free.status());
    tune::MeasureOptions measuring;
    measuring.seconds = options.seconds;
    const auto times =
        tune::time_kernels(*context, point.size, static_cast<int>(options.threads), options.seed, measuring);
    if (isatty(STDERR_FILENO)) std::fputs("\r\033[K", stderr);
    if (!times) return fail("tune", times.status());
    const Problem problem = tune::make_problem(point.size);
    TuningLine line{tuning_key(problem), times->front().kernel,
                    std::round(1e4 * times->front().timing.median_ms) / 10};
    std::printf("%s\n", to_string(line.key).c_str());
    for (const tune::KernelTime& time : *times)
      std::printf("  %-40s %s\n", time.kernel.c_str(), milliseconds_text(time.timing.median_ms).c_str());
    std::fflush(stdout);
    lines.push_back(std::move(line));
  }
  tune::merge_lines(&*tuning, lines);
  if (options.dry_run) {
    std::fputs(tuning->to_string().c_str(), stdout);
    return kDone;
  }
  if (Status status = tune::write_tuning(path, *tuning); !status) return fail("tune", status);
  std::printf("%zu of %zu lines of %s measured now; TILEWISE_TUNING=%s uses them\n", lines.size(),
              tuning->lines.size(), path.c_str(), path.c_str());
  return kDone;
}

}  // namespace tilewise::cli
