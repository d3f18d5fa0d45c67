// The one-call form: plan from the cache, workspace from the pool.
#include "api/bind.h"
#include "api/border.h"
#include "api/run.h"
#include "cuda/runtime.h"

namespace tilewise {
namespace {

class PooledWorkspace {
 public:
  PooledWorkspace(WorkspacePool& pool, int64_t bytes) : pool_(pool), block_(pool.take(bytes)) {}
  ~PooledWorkspace() {
    if (block_.data) pool_.give_back(block_);
  }
  PooledWorkspace(const PooledWorkspace&) = delete;
  PooledWorkspace& operator=(const PooledWorkspace&) = delete;
  const tilewise_workspace& get() const { return block_; }

 private:
  WorkspacePool& pool_;
  tilewise_workspace block_;
};

using Before = std::function<Status()>;

Status run(const tilewise_context& context, const tilewise_plan& plan, const tilewise_tensors& tensors,
           const tilewise_workspace& workspace, void* stream, const Before& before) {
  return plan.problem.direction == TILEWISE_BACKWARD
             ? run_backward(context, plan, tensors, workspace, stream)
             : run_forward(context, plan, tensors, workspace, stream, before);
}

Status run_on_cuda(const tilewise_context& context, const tilewise_plan& plan,
                   const tilewise_tensors& tensors, void* stream, const Before& before) {
  const Kernel* kernel = nullptr;
  const auto direction = static_cast<tilewise_direction>(plan.problem.direction);
  if (Status s = find_kernel(context, plan, direction, &kernel); !s.ok()) return s;
  if (!needs_workspace(*kernel, plan)) return run(context, plan, tensors, {nullptr, 0}, stream, before);
  return context.stream_workspaces.with(plan.device_index, stream, plan.workspace_bytes,
                                        [&](const tilewise_workspace& workspace) {
                                          return run(context, plan, tensors, workspace, stream, before);
                                        });
}

// Once a plan: what tilewise_prepare would do on its device.
Status prepare(const tilewise_context& context, const tilewise_plan& plan) {
  const Kernel* kernel = nullptr;
  const auto direction = static_cast<tilewise_direction>(plan.problem.direction);
  if (Status s = find_kernel(context, plan, direction, &kernel); !s.ok()) return s;
  return kernel->prepare ? kernel->prepare(*kernel, Problem(plan.problem), plan.device_index) : Status();
}

}  // namespace

Status run_attention(const tilewise_context& context, const tilewise_problem& options,
                     const tilewise_tensors& tensors, void* stream, const Before& before) {
  tilewise_problem problem;
  if (Status s = problem_from_tensors(options, tensors, &problem); !s.ok()) return s;
  const tilewise_device_info* device = nullptr;
  if (Status s = context.device_of(tensors.q.device_kind, tensors.q.device_index, &device); !s.ok()) return s;
  tilewise_plan plan;
  if (!context.plans.find(problem, device->kind, device->index, &plan)) {
    if (Status s = make_plan(context.request(problem, nullptr, *device), &plan); !s.ok()) return s;
    if (Status s = prepare(context, plan); !s.ok()) return s;
    context.plans.store(plan);
  }
  if (device->kind == TILEWISE_CUDA) return run_on_cuda(context, plan, tensors, stream, before);
  const PooledWorkspace workspace(*context.workspaces, plan.workspace_bytes);
  if (!workspace.get().data)
    return {Code::out_of_memory,
            cat("the allocator gave no workspace of ", plan.workspace_bytes, " bytes for ", plan.kernel)};
  return run(context, plan, tensors, workspace.get(), stream, before);
}

}  // namespace tilewise

tilewise_code tilewise_attention(tilewise_context* context, const tilewise_problem* options,
                                 const tilewise_tensors* tensors, void* stream, tilewise_error* error) {
  using namespace tilewise;
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!options) return null_argument("options");
    if (!tensors) return null_argument("tensors");
    return run_attention(*context, *options, *tensors, stream);
  });
}
