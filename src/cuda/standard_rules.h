// What the planner asks of a three-step row (rules.h has the rest of the CUDA rows).
#ifndef TILEWISE_CUDA_STANDARD_RULES_H_
#define TILEWISE_CUDA_STANDARD_RULES_H_

#include "cuda/rules.h"

namespace tilewise::cuda {

std::string standard_refuses(const Kernel& kernel, const Problem& problem, const DeviceInfo& device);
int64_t standard_scratch(const Kernel& kernel, const Problem& problem, const Schedule& schedule);
Estimate standard_estimate(const Kernel& kernel, const Problem& problem, const DeviceInfo& device,
                           const Schedule& schedule);

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_STANDARD_RULES_H_
