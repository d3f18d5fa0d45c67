// A device and rows for tests of rules: nothing of them asks a real device.
#ifndef TILEWISE_CUDA_MADE_UP_DEVICE_H_
#define TILEWISE_CUDA_MADE_UP_DEVICE_H_

#include <cstdio>
#include <stdexcept>
#include <string_view>

#include "cuda/kernels.h"
#include "tilewise/plan.h"

namespace tilewise {

inline DeviceInfo made_up_device(uint64_t capability = 90) {
  DeviceInfo d;
  d.kind = TILEWISE_CUDA;
  d.cores = 132;
  d.isa = capability;
  d.l1_bytes = 228 << 10;
  d.l2_bytes = 50 << 20;
  d.memory_bytes = int64_t{100} << 30;
  d.core_gflops = 500;
  d.memory_gbps = 4800;
  std::snprintf(d.name, sizeof d.name, "made up");
  return d;
}

inline const Kernel& cuda_row(std::string_view name) {
  for (const Kernel& kernel : cuda_kernels())
    if (kernel.name == name) return kernel;
  throw std::runtime_error("no such row");
}

}  // namespace tilewise
#endif  // TILEWISE_CUDA_MADE_UP_DEVICE_H_
