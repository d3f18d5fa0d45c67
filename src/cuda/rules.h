// What the planner asks of a CUDA row: whether it refuses, its schedule, its scratch, its predicted time and
// bytes. Nothing here touches a device: made-up ones are legal.
#ifndef TILEWISE_CUDA_RULES_H_
#define TILEWISE_CUDA_RULES_H_

#include <string>

#include "core/kernel.h"
#include "cuda/units.h"

namespace tilewise::cuda {

enum class ScoreKind { simple, general };

// The columns of kernels.def that core/kernel.h does not know.
struct Facts {
  int head_dim, head_dim_v;  // the most
  ScoreKind score;
  int alignment;  // bytes
  int blocks;     // resident on a multiprocessor
  int percent;    // of the unit's rate
  cudaError_t (*prepare)(const tilewise_problem&);
  // Of forward rows.
  bool packs_heads = false;  // cuda/packed_heads.h
  cudaError_t (*launch)(const ForwardParams&, const Call&) = nullptr;
  const char* (*refuses_call)(const ForwardParams&) = nullptr;
  // Of backward rows.
  cudaError_t (*launch_backward)(const BackwardParams&, const Call&) = nullptr;
  const char* (*refuses_backward)(const BackwardParams&) = nullptr;
  const char* (*cannot)(const tilewise_problem&) = nullptr;
  int64_t (*scratch)(const tilewise_problem&) = nullptr;
};

inline const Facts& facts_of(const Kernel& kernel) { return *static_cast<const Facts*>(kernel.facts); }

std::string refuses(const Kernel& kernel, const Problem& problem, const DeviceInfo& device);
Schedule schedule(const Kernel& kernel, const Problem& problem, const DeviceInfo& device, int threads);
int64_t scratch_bytes(const Kernel& kernel, const Problem& problem, const Schedule& schedule);
Estimate estimate(const Kernel& kernel, const Problem& problem, const DeviceInfo& device,
                  const Schedule& schedule);

// fp32 FMA lanes of a multiprocessor, by compute capability * 10.
int fma_lanes(uint64_t capability);

// Matrix products in bf16, FLOP a clock and multiprocessor (NVIDIA's tuning guides: dense, fp32 sums). On
// Hopper only wgmma reaches the unit's rate; mma.sync, which the sm80 rows use, about 62 % of it.
double matrix_rate(Target target, uint64_t capability);

// What the estimates of all forms count with: a call's first launch and each behind it on the stream; what a
// device has, FLOP a second in the unit that rows of `target` use, bytes a second.
constexpr double kLaunchSeconds = 3e-6, kNextLaunchSeconds = 2e-6;
double multiprocessors_of(const DeviceInfo& device);
double peak_rate(Target target, const DeviceInfo& device);
double bandwidth(const DeviceInfo& device);

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_RULES_H_
