#include "cuda/kernels.h"

#include "core/text.h"
#include "cuda/device.h"
#include "cuda/f32_rules.h"
#include "cuda/rules.h"
#include "cuda/short_rules.h"
#include "cuda/split_rules.h"
#include "cuda/standard_rules.h"

namespace tilewise {
namespace {

using namespace cuda;

Status failure(const Kernel& kernel, const char* what, cudaError_t error) {
  (void)cudaGetLastError();  // else the next launch of this thread would report it
  if (error == cudaErrorMemoryAllocation)
    return {Code::out_of_memory, cat(kernel.name, ": the device has no memory left")};
  return {Code::device, cat(kernel.name, " could not be ", what, ": ", cudaGetErrorString(error))};
}

// Launches on the call's device unless its strides are refused.
template <typename Params>
Status run(const Kernel& kernel, const Params& params, const Schedule& schedule, const Launch& launch,
           const char* rule, cudaError_t (*launch_unit)(const Params&, const Call&)) {
  if (rule)
    return {Code::unsupported, cat(kernel.name, " cannot run this call: ", rule,
                                   "; accepted: such strides, or a plan forced to a simt row")};
  const DeviceScope scope(launch.device_index);
  if (!scope.ok()) return scope.status();
  Call call;
  call.stream = static_cast<cudaStream_t>(launch.stream);
  if (Status s = check_stream(launch.device_index, call.stream); !s.ok()) return s;
  call.scratch = launch.scratch;
  call.control = launch.control;
  call.num_splits = schedule.num_splits;
  cudaError_t error =
      cudaDeviceGetAttribute(&call.multiprocessors, cudaDevAttrMultiProcessorCount, launch.device_index);
  if (error == cudaSuccess) error = launch_unit(params, call);
  return error == cudaSuccess ? Status() : failure(kernel, "launched", error);
}

Status run_forward(const Kernel& kernel, const ForwardParams& params, const Schedule& schedule,
                   const Launch& launch) {
  const Facts& facts = facts_of(kernel);
  return run(kernel, params, schedule, launch, facts.refuses_call(params), facts.launch);
}

Status run_backward(const Kernel& kernel, const BackwardParams& params, const Schedule& schedule,
                    const Launch& launch) {
  const Facts& facts = facts_of(kernel);
  return run(kernel, params, schedule, launch, facts.refuses_backward(params), facts.launch_backward);
}

Status run_prepare(const Kernel& kernel, const Problem& problem, int device_index) {
  const DeviceScope scope(device_index);
  if (!scope.ok()) return scope.status();
  const cudaError_t error = facts_of(kernel).prepare(problem);
  return error == cudaSuccess ? Status() : failure(kernel, "loaded", error);
}

#define COLUMNS(name, dim, dim_v, score_kind, align, resident, share)                       \
  .head_dim = dim, .head_dim_v = dim_v, .score = ScoreKind::score_kind, .alignment = align, \
  .blocks = resident, .percent = share, .prepare = cuda::name##_prepare
#define CUDA_FORWARD(name, arch, type, dim, dim_v, m, n, score, align, resident, share)  \
  constexpr Facts name##_facts{COLUMNS(name, dim, dim_v, score, align, resident, share), \
                               .launch = cuda::name, .refuses_call = cuda::name##_refuses};
#define CUDA_TEAMS(name, arch, type, dim, dim_v, m, n, score, align, resident, share)    \
  constexpr Facts name##_facts{COLUMNS(name, dim, dim_v, score, align, resident, share), \
                               .packs_heads = true, .launch = cuda::name,                \
                               .refuses_call = cuda::name##_refuses};
#define CUDA_BACKWARD(name, arch, type, dim, dim_v, m, n, score, align, resident, share)                \
  constexpr Facts name##_facts{COLUMNS(name, dim, dim_v, score, align, resident, share),                \
                               .launch_backward = cuda::name, .refuses_backward = cuda::name##_refuses, \
                               .cannot = cuda::name##_cannot, .scratch = cuda::name##_scratch};
#include "cuda/kernels.def"
#undef COLUMNS

constexpr Kernel row(const char* name, Op op, Form form, Target target, DType dtype, int tile_m, int tile_n,
                     const Facts& facts) {
  Kernel kernel{.name = name,
                .op = op,
                .target = target,
                .dtype = dtype,
                .tile_m = tile_m,
                .tile_n = tile_n,
                .form = form,
                .refuses = refuses,
                .schedule = schedule,
                .scratch_bytes = scratch_bytes,
                .estimate = estimate,
                .forward = op == Op::forward ? run_forward : nullptr,
                .backward = op == Op::backward ? run_backward : nullptr,
                .prepare = run_prepare,
                .control = form == Form::split || target == Target::sm90,
                .facts = &facts};
  if (form == Form::split) {
    kernel.refuses = split_refuses;
    kernel.schedule = split_schedule;
    kernel.scratch_bytes = split_scratch;
    kernel.estimate = split_estimate;
  } else if (form == Form::small) {
    kernel.refuses = short_refuses;
    kernel.estimate = short_estimate;
  } else if (form == Form::standard) {
    kernel.refuses = standard_refuses;
    kernel.scratch_bytes = standard_scratch;
    kernel.estimate = standard_estimate;
  }
  return kernel;
}

constexpr Kernel over(DType stored, Kernel kernel) {
  kernel.dtype_kv = stored;
  return kernel;
}

constexpr Kernel in_parts(Kernel kernel) {
  if (kernel.op == Op::forward) kernel.scratch_bytes = f32_scratch;
  kernel.estimate = f32_estimate;
  return kernel;
}

#define ROW(op, form, name, arch, type, dim, dim_v, m, n, ...) \
  row(#name, Op::op, Form::form, Target::arch, DType::type, m, n, name##_facts)
#define CUDA_FORWARD(...) ROW(forward, fused, __VA_ARGS__),
#define CUDA_F32(...) in_parts(ROW(forward, fused, __VA_ARGS__)),
#define CUDA_SPLIT(...) ROW(forward, split, __VA_ARGS__),
#define CUDA_SPLIT_STORED(name, arch, type, stored, ...) \
  over(DType::stored, ROW(forward, split, name, arch, type, __VA_ARGS__)),
#define CUDA_SHORT(...) ROW(forward, small, __VA_ARGS__),
#define CUDA_STANDARD(...) ROW(forward, standard, __VA_ARGS__),
#define CUDA_BACKWARD(...) ROW(backward, fused, __VA_ARGS__),
#define CUDA_BACKWARD_F32(...) in_parts(ROW(backward, fused, __VA_ARGS__)),
constexpr Kernel kRows[] = {
#include "cuda/kernels.def"
};
#undef ROW

}  // namespace

std::span<const Kernel> cuda_kernels() { return kRows; }

}  // namespace tilewise
