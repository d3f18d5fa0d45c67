// One planned call: checks, then the launch. Allocates nothing while nothing is wrong.
#ifndef TILEWISE_API_RUN_H_
#define TILEWISE_API_RUN_H_

#include "api/context.h"

namespace tilewise {

Status run_forward(const tilewise_context& context, const tilewise_plan& plan,
                   const tilewise_tensors& tensors, tilewise_workspace workspace, void* stream);
Status run_backward(const tilewise_context& context, const tilewise_plan& plan,
                    const tilewise_tensors& tensors, tilewise_workspace workspace, void* stream);

}  // namespace tilewise
#endif  // TILEWISE_API_RUN_H_
