#include "cpu/forward.h"

#include <string>

namespace tilewise::cpu {

int64_t forward_worker_bytes(const ForwardSizes& sizes) {
  Arena counting;
  ForwardScratch scratch(counting, sizes);
  return multiple_of(256, counting.used());
}

namespace {

ForwardSizes sizes_of(const Problem& p, const Schedule& schedule) {
  return {p.batch, p.heads_q, p.heads_kv, p.seqlen_q, p.head_dim, p.head_dim_v, schedule};
}

uint64_t isa_of(Target target) {
  switch (target) {
    case Target::avx2:
      return TILEWISE_ISA_AVX2;
    case Target::avx512:
      return TILEWISE_ISA_AVX512;
    case Target::neon:
      return TILEWISE_ISA_NEON;
    default:
      return TILEWISE_ISA_SCALAR;
  }
}

}  // namespace

std::string refuses_target(const Kernel& kernel, const DeviceInfo& device) {
  if (device.kind != TILEWISE_CPU) return "runs on the CPU only; the device asked for is not one";
  if (kernel.target == Target::scalar || (device.isa & isa_of(kernel.target))) return {};
  switch (kernel.target) {
    case Target::avx2:
      return "needs AVX2, FMA and F16C, which this processor does not report";
    case Target::avx512:
      return "needs AVX-512 F, BW, CD, DQ and VL, which this processor does not report";
    default:
      return "needs NEON, which this processor does not report";
  }
}

std::string forward_refuses(const Kernel& kernel, const Problem& p, const DeviceInfo& device) {
  if (std::string reason = refuses_target(kernel, device); !reason.empty()) return reason;
  const auto wanted = static_cast<int32_t>(kernel.dtype);
  if (p.dtype_q != wanted || p.dtype_k != wanted || p.dtype_v != wanted) {
    return std::string("reads q, k and v as ") + name_of(kernel.dtype) + "; given " +
           name_of(static_cast<DType>(p.dtype_q)) + ", " + name_of(static_cast<DType>(p.dtype_k)) + ", " +
           name_of(static_cast<DType>(p.dtype_v));
  }
  if (p.seqlen_kv > INT32_MAX - 1024) {
    return "counts keys in 32 bits: seqlen_kv must be below 2147482623, given " + std::to_string(p.seqlen_kv);
  }
  return {};
}

Schedule forward_schedule(const Kernel& kernel, const Problem& p, const DeviceInfo&, int threads) {
  Schedule schedule;
  schedule.tile_m = kernel.tile_m;
  schedule.tile_n = kernel.tile_n;
  schedule.threads = std::max(threads, 1);
  const ForwardSizes sizes = sizes_of(p, schedule);
  const int64_t tasks = std::max<int64_t>(p.batch * p.heads_kv * sizes.tasks_per_head, 1);
  schedule.threads = static_cast<int>(std::min<int64_t>(schedule.threads, tasks));
  return schedule;
}

int64_t forward_scratch_bytes(const Kernel&, const Problem& p, const Schedule& schedule) {
  return forward_worker_bytes(sizes_of(p, schedule)) * schedule.threads;
}

double visible_pairs(const Problem& p) {
  const auto rows = static_cast<double>(p.seqlen_q), keys = static_cast<double>(p.seqlen_kv);
  double per_row = keys;
  if (p.causal && p.window_left < 0)
    per_row = rows <= keys ? keys - 0.5 * rows : 0.5 * keys * keys / std::max(rows, 1.0);
  if (p.window_left >= 0) {
    const double right = p.causal ? 0.0 : p.window_right < 0 ? keys : static_cast<double>(p.window_right);
    per_row = std::min(per_row, static_cast<double>(p.window_left) + right + 1.0);
  }
  return static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * rows * std::max(per_row, 1.0);
}

double gflops_of(const Kernel& kernel, const DeviceInfo& device, int threads) {
  double core = device.core_gflops > 0.0 ? device.core_gflops : 50.0;  // of the widest instruction set
  if (kernel.target == Target::avx2 && (device.isa & TILEWISE_ISA_AVX512)) core *= 0.5;
  if (kernel.target == Target::scalar) core *= 0.05;
  return core * threads;
}

Estimate forward_estimate(const Kernel& kernel, const Problem& p, const DeviceInfo& device,
                          const Schedule& schedule) {
  constexpr double kShareOfPeak = 0.85, kExpPerScore = 12.0;
  const double pairs = visible_pairs(p);
  const double flops = pairs * (2.0 * static_cast<double>(p.head_dim + p.head_dim_v) + 2.0 * kExpPerScore);
  Estimate estimate;
  estimate.seconds = flops / (kShareOfPeak * gflops_of(kernel, device, schedule.threads) * 1e9) + 2e-6;
  const double element = kernel.dtype == DType::f32 ? 4.0 : 2.0;
  const auto batch = static_cast<double>(p.batch), d = static_cast<double>(p.head_dim),
             dv = static_cast<double>(p.head_dim_v);
  estimate.bytes = element * batch *
                   (static_cast<double>(p.heads_q) * static_cast<double>(p.seqlen_q) * (d + dv) +
                    static_cast<double>(p.heads_kv) * static_cast<double>(p.seqlen_kv) * (d + dv));
  return estimate;
}

}  // namespace tilewise::cpu
