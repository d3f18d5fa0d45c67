// What the planner asks of an fp32 row whose products are of 16 bits (rules.h has the rest of the CUDA rows).
#ifndef TILEWISE_CUDA_F32_RULES_H_
#define TILEWISE_CUDA_F32_RULES_H_

#include "cuda/rules.h"

namespace tilewise::cuda {

int64_t f32_scratch(const Kernel& kernel, const Problem& problem, const Schedule& schedule);
Estimate f32_estimate(const Kernel& kernel, const Problem& problem, const DeviceInfo& device,
                      const Schedule& schedule);

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_F32_RULES_H_
