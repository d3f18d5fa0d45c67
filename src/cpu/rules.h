// What the planner asks of a CPU row: whether it refuses, its schedule, its scratch, its predicted time and
// bytes.
#ifndef TILEWISE_CPU_RULES_H_
#define TILEWISE_CPU_RULES_H_

#include <string>

#include "core/kernel.h"

namespace tilewise::cpu {

constexpr int kMaxHeadDim = 576;

std::string refuses(const Kernel& kernel, const Problem& problem, const DeviceInfo& device);
Schedule schedule(const Kernel& kernel, const Problem& problem, const DeviceInfo& device, int threads);
int64_t scratch_bytes(const Kernel& kernel, const Problem& problem, const Schedule& schedule);
Estimate estimate(const Kernel& kernel, const Problem& problem, const DeviceInfo& device,
                  const Schedule& schedule);

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_RULES_H_
