#include "api/run.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>

#include "api/bind.h"
#include "api/border.h"
#include "api/device_values.h"
#include "core/pages.h"
#include "core/text.h"
#include "cuda/runtime.h"

namespace tilewise {
namespace {

// Marks a workspace as taken, in the first word of its control block, for as long as it lives.
class WorkspaceUse {
 public:
  explicit WorkspaceUse(void* control) : word_(*static_cast<uint32_t*>(control)) {
    uint32_t idle = 0;
    taken_ = word_.compare_exchange_strong(idle, 1, std::memory_order_acquire, std::memory_order_relaxed);
  }
  ~WorkspaceUse() {
    if (taken_) word_.store(0, std::memory_order_release);
  }
  WorkspaceUse(const WorkspaceUse&) = delete;
  WorkspaceUse& operator=(const WorkspaceUse&) = delete;
  bool taken() const { return taken_; }

 private:
  std::atomic_ref<uint32_t> word_;
  bool taken_;
};

}  // namespace

bool needs_workspace(const Kernel& kernel, const tilewise_plan& plan) {
  return plan.device_kind == TILEWISE_CPU || kernel.control || plan.workspace_bytes > TILEWISE_CONTROL_BYTES;
}

Status find_kernel(const tilewise_context& context, const tilewise_plan& plan, tilewise_direction direction,
                   const Kernel** kernel) {
  if (plan.struct_bytes != sizeof plan)
    return {Code::invalid,
            cat("plan.struct_bytes is ", plan.struct_bytes, "; accepted: a plan of this library version")};
  if (plan.problem.direction != direction) {
    return {Code::invalid,
            cat("the plan is for ", plan.problem.direction == TILEWISE_BACKWARD ? "backward" : "forward",
                "; accepted: a plan for ", direction == TILEWISE_BACKWARD ? "backward" : "forward")};
  }
  const std::string_view name(plan.kernel, strnlen(plan.kernel, sizeof plan.kernel));
  *kernel = context.registry.row(plan.kernel_index, name);
  if (!*kernel) return {Code::invalid, cat("the plan's kernel ", name, " is not in this context's library")};
  return {};
}

namespace {

Status check_workspace(const Kernel& kernel, const tilewise_plan& plan, const tilewise_workspace& w) {
  if (!needs_workspace(kernel, plan)) return {};
  if (!w.data)
    return {Code::invalid,
            cat("workspace is NULL; accepted: ", plan.workspace_bytes, " bytes, 256-byte aligned")};
  if (reinterpret_cast<uintptr_t>(w.data) % TILEWISE_WORKSPACE_ALIGNMENT != 0)
    return {Code::invalid, cat("workspace is not 256-byte aligned (address ends in ",
                               reinterpret_cast<uintptr_t>(w.data) % TILEWISE_WORKSPACE_ALIGNMENT, ")")};
  if (w.bytes < plan.workspace_bytes)
    return {Code::out_of_memory,
            cat("workspace has ", w.bytes, " bytes; accepted: ", plan.workspace_bytes, " or more")};
  return {};
}

void log_call(const tilewise_context& context, const Kernel& kernel, const ForwardParams& p,
              const Schedule& schedule, const tilewise_plan& plan) {
  char line[256];
  std::snprintf(line, sizeof line,
                "tilewise %s: kernel %s batch %lld heads %lld/%lld seqlen %lldx%lld head_dim %lld/%lld "
                "threads %d workspace %lld",
                kernel.op == Op::backward ? "backward" : "forward", kernel.name,
                static_cast<long long>(p.batch), static_cast<long long>(p.heads_q),
                static_cast<long long>(p.heads_kv), static_cast<long long>(p.seqlen_q),
                static_cast<long long>(p.seqlen_kv), static_cast<long long>(p.head_dim),
                static_cast<long long>(p.head_dim_v), schedule.threads,
                static_cast<long long>(plan.workspace_bytes));
  context.log(line);
}

// Without a sequence there is nothing to launch; gradients that have no batch dimension are zero all the
// same.
void zero_shared_gradients(const BackwardParams& p) {
  for (int64_t h = 0; p.dsinks && h < p.heads_q; ++h) p.dsinks[h * p.dsinks_stride] = 0.0f;
  if (!p.dbias.data) return;
  const ScoreTensor& t = p.dbias;
  const int64_t* n = p.bias_shape;
  const size_t element = static_cast<size_t>(bits_of(t.dtype) / 8);
  for (int64_t b = 0; b < n[0]; ++b) {
    for (int64_t h = 0; h < n[1]; ++h) {
      for (int64_t i = 0; i < n[2]; ++i) {
        for (int64_t j = 0; j < n[3]; ++j) {
          const int64_t at = b * t.batch_stride + h * t.head_stride + i * t.row_stride + j * t.key_stride;
          std::memset(static_cast<char*>(t.data) + at * static_cast<int64_t>(element), 0, element);
        }
      }
    }
  }
}

template <typename Params, typename Bind, typename Run>
Status run(const tilewise_context& context, const tilewise_plan& plan, const tilewise_tensors& tensors,
           const tilewise_workspace& workspace, void* stream, tilewise_direction direction, Bind bind,
           Run launch_kernel, const std::function<Status()>& before = nullptr) {
  const Kernel* kernel = nullptr;
  if (Status s = find_kernel(context, plan, direction, &kernel); !s.ok()) return s;
  Params params;
  if (Status s = bind(plan.problem, {plan.device_kind, plan.device_index}, tensors, &params); !s.ok())
    return s;
  if (plan.device_kind == TILEWISE_CPU) {
    if (Status s = check_values(plan.problem, params, context.options.check_data != 0); !s.ok()) return s;
  } else if (context.options.check_data) {
    const auto check = [&](const ForwardParams& seen) { return check_values(plan.problem, seen, true); };
    if (Status s = check_device_values(plan.device_index, params, check); !s.ok()) return s;
  }
  if (Status s = check_workspace(*kernel, plan, workspace); !s.ok()) return s;
  // A device's control block is not the host's to look at; calls of one stream follow each other anyway.
  std::optional<WorkspaceUse> use;
  if (plan.device_kind == TILEWISE_CPU) use.emplace(workspace.data);
  if (use && !use->taken()) {
    return {Code::invalid,
            "workspace is in use by another call, or its first 256 bytes were not zeroed; accepted: one "
            "call at a time, and zeros before the first"};
  }
  Executor* executor = context.executor.get();
  // The plan's threads, whatever the executor has: kernels lay their scratch out for them. It runs fewer at
  // once.
  const Schedule schedule{
      .threads = plan.threads, .tile_m = plan.tile_m, .tile_n = plan.tile_n, .num_splits = plan.num_splits};
  const Launch launch{
      .executor = executor,
      .control = workspace.data,
      .scratch = workspace.data ? static_cast<char*>(workspace.data) + TILEWISE_CONTROL_BYTES : nullptr,
      .scratch_bytes = plan.workspace_bytes - TILEWISE_CONTROL_BYTES,
      .stream = stream,
      .device_index = plan.device_index};
  if (context.options.log) log_call(context, *kernel, params, schedule, plan);
  if (before) {
    if (Status s = before(); !s.ok()) return s;
  }
  return launch_kernel(*kernel, params, schedule, launch);
}

}  // namespace

Status run_forward(const tilewise_context& context, const tilewise_plan& plan,
                   const tilewise_tensors& tensors, tilewise_workspace workspace, void* stream,
                   const std::function<Status()>& before) {
  return run<ForwardParams>(
      context, plan, tensors, workspace, stream, TILEWISE_FORWARD, bind_forward,
      [](const Kernel& k, const ForwardParams& p, const Schedule& s, const Launch& l) {
        return p.batch == 0 ? Status() : k.forward(k, p, s, l);
      },
      before);
}

Status run_backward(const tilewise_context& context, const tilewise_plan& plan,
                    const tilewise_tensors& tensors, tilewise_workspace workspace, void* stream) {
  return run<BackwardParams>(
      context, plan, tensors, workspace, stream, TILEWISE_BACKWARD, bind_backward,
      [](const Kernel& k, const BackwardParams& p, const Schedule& s, const Launch& l) {
        if (p.batch != 0 || is_cuda(k.target)) return k.backward(k, p, s, l);
        zero_shared_gradients(p);
        return Status();
      });
}

}  // namespace tilewise

using namespace tilewise;

tilewise_code tilewise_prepare(tilewise_context* context, const tilewise_plan* plan, tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!plan) return null_argument("plan");
    const Kernel* kernel = nullptr;
    const auto direction = static_cast<tilewise_direction>(plan->problem.direction);
    if (Status s = find_kernel(*context, *plan, direction, &kernel); !s.ok()) return s;
    if (context->pool && plan->threads > 1) context->pool->start();
    return kernel->prepare ? kernel->prepare(*kernel, Problem(plan->problem), plan->device_index) : Status();
  });
}

tilewise_code tilewise_forward(tilewise_context* context, const tilewise_plan* plan,
                               const tilewise_tensors* tensors, tilewise_workspace workspace, void* stream,
                               tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!plan) return null_argument("plan");
    if (!tensors) return null_argument("tensors");
    return run_forward(*context, *plan, *tensors, workspace, stream);
  });
}

tilewise_code tilewise_backward(tilewise_context* context, const tilewise_plan* plan,
                                const tilewise_tensors* tensors, tilewise_workspace workspace, void* stream,
                                tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!plan) return null_argument("plan");
    if (!tensors) return null_argument("tensors");
    return run_backward(*context, *plan, *tensors, workspace, stream);
  });
}

tilewise_code tilewise_workspace_allocate(const tilewise_plan* plan, tilewise_workspace* workspace,
                                          tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!plan) return null_argument("plan");
    if (!workspace) return null_argument("workspace");
    *workspace = {nullptr, 0};
    const int64_t bytes = std::max<int64_t>(plan->workspace_bytes, TILEWISE_CONTROL_BYTES);
    void* data = nullptr;
    if (plan->device_kind == TILEWISE_CUDA) {
      if (Status s = cuda::allocate(plan->device_index, bytes, &data); !s.ok()) return s;
      if (Status s = cuda::fill(plan->device_index, data, 0, TILEWISE_CONTROL_BYTES); !s.ok()) {
        cuda::release(plan->device_index, data);
        return s;
      }
    } else {
      data = allocate_pages(static_cast<size_t>(bytes)).release();
      if (!data) return {Code::out_of_memory, cat("a workspace of ", bytes, " bytes could not be allocated")};
      std::memset(data, 0, TILEWISE_CONTROL_BYTES);
    }
    *workspace = {data, bytes};
    return {};
  });
}

void tilewise_workspace_release(const tilewise_plan* plan, tilewise_workspace workspace) {
  if (!plan || !workspace.data) return;
  if (plan->device_kind == TILEWISE_CUDA)
    cuda::release(plan->device_index, workspace.data);
  else
    FreePages()(static_cast<std::byte*>(workspace.data));
}
