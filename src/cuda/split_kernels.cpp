#include "core/text.h"
#include "cuda/device.h"
#include "cuda/kernels.h"
#include "cuda/split_rules.h"

namespace tilewise {
namespace {

using namespace cuda;

Status run_split(const Kernel& kernel, const ForwardParams& params, const Schedule& schedule,
                 const Launch& launch) {
  const DeviceScope scope(launch.device_index);
  if (!scope.ok()) return scope.status();
  Call call;
  call.stream = static_cast<cudaStream_t>(launch.stream);
  call.scratch = launch.scratch;
  call.control = launch.control;
  call.num_splits = schedule.num_splits;
  cudaError_t error =
      cudaDeviceGetAttribute(&call.multiprocessors, cudaDevAttrMultiProcessorCount, launch.device_index);
  if (error == cudaSuccess) error = facts_of(kernel).launch(params, call);
  return status_of(error, cat("launching ", kernel.name).c_str());
}

Status run_prepare(const Kernel& kernel, const Problem& problem, int device_index) {
  const DeviceScope scope(device_index);
  if (!scope.ok()) return scope.status();
  return status_of(facts_of(kernel).prepare(problem), cat("loading ", kernel.name).c_str());
}

#define CUDA_SPLIT(name, arch, type, dim, dim_v, m, n, score_kind, align, resident, share) \
  constexpr Facts name##_facts{.head_dim = dim,                                            \
                               .head_dim_v = dim_v,                                        \
                               .score = ScoreKind::score_kind,                             \
                               .alignment = align,                                         \
                               .blocks = resident,                                         \
                               .percent = share,                                           \
                               .prepare = cuda::name##_prepare,                            \
                               .launch = cuda::name,                                       \
                               .refuses_call = cuda::name##_refuses};
#include "cuda/split_kernels.def"
#undef CUDA_SPLIT

#define CUDA_SPLIT(row_name, arch, type, dim, dim_v, m, n, ...) \
  Kernel{.name = #row_name,                                     \
         .op = Op::forward,                                     \
         .target = Target::arch,                                \
         .dtype = DType::type,                                  \
         .head_dim = 0,                                         \
         .tile_m = m,                                           \
         .tile_n = n,                                           \
         .form = Form::split,                                   \
         .refuses = split_refuses,                              \
         .schedule = split_schedule,                            \
         .scratch_bytes = split_scratch,                        \
         .estimate = split_estimate,                            \
         .forward = run_split,                                  \
         .backward = nullptr,                                   \
         .prepare = run_prepare,                                \
         .control = true,                                       \
         .facts = &row_name##_facts},
constexpr Kernel kRows[] = {
#include "cuda/split_kernels.def"
};
#undef CUDA_SPLIT

}  // namespace

std::span<const Kernel> cuda_split_kernels() { return kRows; }

}  // namespace tilewise
