#include "api/context.h"

#include <cstring>

#include "api/border.h"
#include "cpu/features.h"
#include "cuda/runtime.h"

namespace tilewise {
namespace {

constexpr int kMaxThreads = 4096;

Status check_options(const tilewise_context_options& o) {
  if (o.struct_bytes != sizeof o) {
    return {Code::invalid, cat("options.struct_bytes is ", o.struct_bytes, "; accepted: ", sizeof o,
                               " (start from tilewise_context_options_init of the same library version)")};
  }
  if (o.threads < 0 || o.threads > kMaxThreads)
    return {Code::invalid, cat("threads is ", o.threads, "; accepted: 0 (physical cores) to ", kMaxThreads)};
  if (!o.allocate != !o.release)
    return {Code::invalid, cat(o.allocate ? "release" : "allocate",
                               " is NULL; accepted: both of allocate and release, or neither")};
  if (o.check_data != 0 && o.check_data != 1)
    return {Code::invalid, cat("check_data is ", o.check_data, "; accepted: 0 or 1")};
  return {};
}

Status check_cpu(int32_t kind, int32_t index) {
  if (kind != TILEWISE_CPU)
    return {Code::invalid, cat("device kind is ", kind, "; accepted: 0 (CPU), 1 (CUDA)")};
  if (index != 0) return {Code::invalid, cat("CPU index is ", index, "; accepted: 0")};
  return {};
}

Status create(const tilewise_context_options& o, tilewise_context** out) {
  if (Status s = check_options(o); !s.ok()) return s;
  auto context = std::make_unique<tilewise_context>();
  context->options = o;
  context->options.kernel = context->options.tuning_text = nullptr;
  if (o.kernel) context->forced = o.kernel;
  // A misspelt kernel is an error here, not at the first plan.
  if (Status s = check_names(context->registry, context->forced); !s.ok()) return s;
  if (o.tuning_text) {
    auto tuning = parse_tuning(o.tuning_text);
    if (!tuning) return tuning.status();
    context->tuning = std::move(*tuning);
  }
  context->cpu = context->device = query_cpu();
  if (o.device_kind != TILEWISE_CPU) {
    const tilewise_device_info* device = nullptr;
    if (Status s = context->device_of(o.device_kind, o.device_index, &device); !s.ok()) return s;
    context->device = *device;
  }
  const int threads = o.threads > 0 ? o.threads : context->cpu.cores;
  if (o.parallel_for) {
    context->executor = std::make_unique<CallerExecutor>(threads, o.parallel_for, o.parallel_for_user);
  } else {
    auto pool = std::make_unique<ThreadPool>(threads);
    context->pool = pool.get();
    context->executor = std::move(pool);
  }
  context->workspaces = std::make_unique<WorkspacePool>(o.allocate, o.release, o.allocate_user);
  *out = context.release();
  return {};
}

}  // namespace
}  // namespace tilewise

tilewise::Status tilewise_context::device_of(int32_t kind, int32_t index,
                                             const tilewise_device_info** info) const {
  *info = &cpu;
  if (kind == TILEWISE_CPU) return {};
  if (kind != TILEWISE_CUDA)
    return {tilewise::Code::invalid, tilewise::cat("device kind is ", kind, "; accepted: 0 (CPU), 1 (CUDA)")};
  std::lock_guard lock(devices_mutex_);
  auto known = cuda_devices_.find(index);
  if (known == cuda_devices_.end()) {
    const auto asked = tilewise::cuda::query(index);
    if (!asked) return asked.status();
    known = cuda_devices_.emplace(index, *asked).first;
  }
  *info = &known->second;
  return {};
}

tilewise::PlanRequest tilewise_context::request(const tilewise_problem& problem,
                                                const tilewise_limits* limits,
                                                const tilewise_device_info& on) const {
  tilewise::PlanRequest r{.registry = registry, .problem = problem, .device = on};
  r.threads = executor->workers();
  r.forced = forced;
  if (tuning) r.tuning = &*tuning;
  if (limits) {
    r.max_workspace_bytes = limits->max_workspace_bytes;
    if (limits->threads != 0) r.threads = limits->threads;
    if (limits->kernel && *limits->kernel) r.forced = limits->kernel;
  }
  return r;
}

using namespace tilewise;

void tilewise_context_options_init(tilewise_context_options* options) {
  if (!options) return;
  std::memset(options, 0, sizeof *options);
  options->struct_bytes = sizeof *options;
}

tilewise_code tilewise_context_create(const tilewise_context_options* options, tilewise_context** context,
                                      tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    *context = nullptr;
    tilewise_context_options defaults;
    tilewise_context_options_init(&defaults);
    return create(options ? *options : defaults, context);
  });
}

void tilewise_context_destroy(tilewise_context* context) { delete context; }

int32_t tilewise_context_threads(const tilewise_context* context) {
  return context ? context->executor->workers() : 0;
}

tilewise_code tilewise_device_query(int32_t kind, int32_t index, tilewise_device_info* device,
                                    tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!device) return null_argument("device");
    std::memset(device, 0, sizeof *device);
    if (kind == TILEWISE_CUDA) {
      const auto asked = cuda::query(index);
      if (asked) *device = *asked;
      return asked.status();
    }
    if (Status s = check_cpu(kind, index); !s.ok()) return s;
    *device = query_cpu();
    return {};
  });
}

tilewise_code tilewise_device_wait(int32_t kind, int32_t index, tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (kind != TILEWISE_CUDA) return check_cpu(kind, index);
    if (const auto asked = cuda::query(index); !asked) return asked.status();
    return cuda::synchronize(index);
  });
}
