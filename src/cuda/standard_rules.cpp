#include "cuda/standard_rules.h"

#include <algorithm>

#include "core/cost.h"
#include "cuda/standard_sizes.h"

namespace tilewise::cuda {
namespace {

StandardSizes sizes_of(const Problem& p) {
  return StandardSizes(p.batch, p.heads_q, p.seqlen_q, p.seqlen_kv);
}

}  // namespace

std::string standard_refuses(const Kernel& kernel, const Problem& p, const DeviceInfo& device) {
  // A packed sequence may be longer than was planned for, and its scores would not fit.
  if (p.packed_q || p.packed_kv) return "keeps scores in scratch of a fixed size; the problem is packed";
  return refuses(kernel, p, device);
}

int64_t standard_scratch(const Kernel&, const Problem& p, const Schedule&) { return sizes_of(p).bytes(); }

// The steps do not overlap: each takes the longer of its work and its bytes.
Estimate standard_estimate(const Kernel& kernel, const Problem& p, const DeviceInfo& device,
                           const Schedule& schedule) {
  const StandardSizes sizes = sizes_of(p);
  Estimate e = estimate(kernel, p, device, schedule);
  const double memory = bandwidth(device);
  const double asked = operations(p);
  const double walked = e.waste < 1.0 ? asked / (1.0 - e.waste) : asked;  // FLOP
  const double pairs = walked / (2.0 * (facts_of(kernel).head_dim + facts_of(kernel).head_dim_v));
  // Written and read: scores of 4 bytes, weights of 2. The maxima's pass leaves short rows in the cache.
  constexpr int64_t kShortRow = 1024;
  const double scores_read = p.seqlen_kv > kShortRow ? 8.0 : 4.0;
  e.bytes = ideal_bytes(p) + (8.0 + scores_read) * pairs;
  const double products = std::max(0.0, e.seconds - kLaunchSeconds);
  e.seconds = kLaunchSeconds + kNextLaunchSeconds * static_cast<double>(3 * sizes.rounds() - 1) +
              std::max(0.5 * products, 4.0 * pairs / memory) + (2.0 + scores_read) * pairs / memory +
              std::max(0.5 * products, 2.0 * pairs / memory);
  return e;
}

}  // namespace tilewise::cuda
