// What the planner asks of a split row (rules.h has the rest of the CUDA rows).
#ifndef TILEWISE_CUDA_SPLIT_RULES_H_
#define TILEWISE_CUDA_SPLIT_RULES_H_

#include "cuda/rules.h"

namespace tilewise::cuda {

std::string split_refuses(const Kernel& kernel, const Problem& problem, const DeviceInfo& device);
Schedule split_schedule(const Kernel& kernel, const Problem& problem, const DeviceInfo& device, int threads);
int64_t split_scratch(const Kernel& kernel, const Problem& problem, const Schedule& schedule);
Estimate split_estimate(const Kernel& kernel, const Problem& problem, const DeviceInfo& device,
                        const Schedule& schedule);

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SPLIT_RULES_H_
