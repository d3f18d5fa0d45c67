// One planned call: checks, then the launch. Allocates nothing while nothing is wrong.
#ifndef TILEWISE_API_RUN_H_
#define TILEWISE_API_RUN_H_

#include <functional>

#include "api/context.h"

namespace tilewise {

// The row of a plan, where the plan is for `direction`.
Status find_kernel(const tilewise_context& context, const tilewise_plan& plan, tilewise_direction direction,
                   const Kernel** kernel);
// A CUDA row without scratch or control block takes a NULL workspace too.
bool needs_workspace(const Kernel& kernel, const tilewise_plan& plan);

// `before`, where given, runs when nothing can be refused any more.
Status run_forward(const tilewise_context& context, const tilewise_plan& plan,
                   const tilewise_tensors& tensors, tilewise_workspace workspace, void* stream,
                   const std::function<Status()>& before = nullptr);
// The one-call form: plan from the cache, workspace from the pool.
Status run_attention(const tilewise_context& context, const tilewise_problem& options,
                     const tilewise_tensors& tensors, void* stream,
                     const std::function<Status()>& before = nullptr);
Status run_backward(const tilewise_context& context, const tilewise_plan& plan,
                    const tilewise_tensors& tensors, tilewise_workspace workspace, void* stream);

}  // namespace tilewise
#endif  // TILEWISE_API_RUN_H_
