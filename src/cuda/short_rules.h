// What the planner asks of a row for short sequences (rules.h has the rest of the CUDA rows).
#ifndef TILEWISE_CUDA_SHORT_RULES_H_
#define TILEWISE_CUDA_SHORT_RULES_H_

#include "cuda/rules.h"

namespace tilewise::cuda {

std::string short_refuses(const Kernel& kernel, const Problem& problem, const DeviceInfo& device);
Estimate short_estimate(const Kernel& kernel, const Problem& problem, const DeviceInfo& device,
                        const Schedule& schedule);

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SHORT_RULES_H_
