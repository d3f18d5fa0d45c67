#include "cuda/kernels.h"

#include "core/text.h"
#include "cuda/device.h"
#include "cuda/rules.h"

namespace tilewise {
namespace {

using namespace cuda;

Status failure(const Kernel& kernel, const char* what, cudaError_t error) {
  (void)cudaGetLastError();  // else the next launch of this thread would report it
  if (error == cudaErrorMemoryAllocation)
    return {Code::out_of_memory, cat(kernel.name, ": the device has no memory left")};
  return {Code::device, cat(kernel.name, " could not be ", what, ": ", cudaGetErrorString(error))};
}

Status run_forward(const Kernel& kernel, const ForwardParams& params, const Schedule&, const Launch& launch) {
  if (const char* rule = facts_of(kernel).refuses_call(params))
    return {Code::unsupported, cat(kernel.name, " cannot run this call: ", rule,
                                   "; accepted: such strides, or a plan forced to a simt row")};
  const DeviceScope scope(launch.device_index);
  if (!scope.ok()) return scope.status();
  Call call;
  call.stream = static_cast<cudaStream_t>(launch.stream);
  call.scratch = launch.scratch;
  call.control = launch.control;
  cudaError_t error =
      cudaDeviceGetAttribute(&call.multiprocessors, cudaDevAttrMultiProcessorCount, launch.device_index);
  if (error == cudaSuccess) error = facts_of(kernel).launch(params, call);
  return error == cudaSuccess ? Status() : failure(kernel, "launched", error);
}

Status run_prepare(const Kernel& kernel, const Problem& problem, int device_index) {
  const DeviceScope scope(device_index);
  if (!scope.ok()) return scope.status();
  const cudaError_t error = facts_of(kernel).prepare(problem);
  return error == cudaSuccess ? Status() : failure(kernel, "loaded", error);
}

#define CUDA_FORWARD(name, arch, type, dim, dim_v, m, n, score, alignment, blocks, percent)            \
  constexpr Facts name##_facts{dim,     dim_v,      ScoreKind::score,     alignment,           blocks, \
                               percent, cuda::name, cuda::name##_prepare, cuda::name##_refuses};
#include "cuda/kernels.def"
#undef CUDA_FORWARD

#define CUDA_FORWARD(row_name, arch, type, dim, dim_v, m, n, ...) \
  Kernel{.name = #row_name,                                       \
         .op = Op::forward,                                       \
         .target = Target::arch,                                  \
         .dtype = DType::type,                                    \
         .head_dim = 0,                                           \
         .tile_m = m,                                             \
         .tile_n = n,                                             \
         .refuses = refuses,                                      \
         .schedule = schedule,                                    \
         .scratch_bytes = scratch_bytes,                          \
         .estimate = estimate,                                    \
         .forward = run_forward,                                  \
         .backward = nullptr,                                     \
         .prepare = run_prepare,                                  \
         .control = Target::arch == Target::sm90,                 \
         .facts = &row_name##_facts},
constexpr Kernel kRows[] = {
#include "cuda/kernels.def"
};
#undef CUDA_FORWARD

}  // namespace

std::span<const Kernel> cuda_kernels() { return kRows; }

}  // namespace tilewise
