// The one-call form: plan from the cache, workspace from the pool.
#include "api/bind.h"
#include "api/border.h"
#include "api/run.h"

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

Status attention(const tilewise_context& context, const tilewise_problem& options,
                 const tilewise_tensors& tensors, void* stream) {
  tilewise_problem problem;
  if (Status s = problem_from_tensors(options, tensors, &problem); !s.ok()) return s;
  tilewise_plan plan;
  if (!context.plans.find(problem, &plan)) {
    if (Status s = make_plan(context.request(problem, nullptr), &plan); !s.ok()) return s;
    context.plans.store(plan);
  }
  const PooledWorkspace workspace(*context.workspaces, plan.workspace_bytes);
  if (!workspace.get().data)
    return {Code::out_of_memory,
            cat("the allocator gave no workspace of ", plan.workspace_bytes, " bytes for ", plan.kernel)};
  return problem.direction == TILEWISE_BACKWARD
             ? run_backward(context, plan, tensors, workspace.get(), stream)
             : run_forward(context, plan, tensors, workspace.get(), stream);
}

}  // namespace
}  // namespace tilewise

tilewise_code tilewise_attention(tilewise_context* context, const tilewise_problem* options,
                                 const tilewise_tensors* tensors, void* stream, tilewise_error* error) {
  using namespace tilewise;
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!options) return null_argument("options");
    if (!tensors) return null_argument("tensors");
    return attention(*context, *options, *tensors, stream);
  });
}
