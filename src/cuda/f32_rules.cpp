#include "cuda/f32_rules.h"

#include "cuda/f32_sizes.h"

namespace tilewise::cuda {

int64_t f32_scratch(const Kernel& kernel, const Problem& p, const Schedule&) {
  const int64_t rows_q = p.packed_q ? p.total_q : p.batch * p.seqlen_q;
  const int64_t rows_kv = p.packed_kv ? p.total_kv : p.batch * p.seqlen_kv;
  return f32_scratch_bytes(facts_of(kernel).head_dim, rows_q * p.heads_q, rows_kv * p.heads_kv);
}

// A kernel before the fused one writes the parts of q, k and v, which that one reads. Of backward they are
// nearly all of the scratch; D, a second fused kernel and two in plain fp32 for what is marked are launches
// more.
Estimate f32_estimate(const Kernel& kernel, const Problem& p, const DeviceInfo& device,
                      const Schedule& schedule) {
  const auto parts = static_cast<double>(kernel.scratch_bytes(kernel, p, schedule));
  Estimate e = estimate(kernel, p, device, schedule);
  e.bytes += 2.0 * parts;
  e.seconds += (kernel.op == Op::backward ? 5 : 1) * kNextLaunchSeconds + 2.0 * parts / bandwidth(device);
  return e;
}

}  // namespace tilewise::cuda
