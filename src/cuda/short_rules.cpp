#include "cuda/short_rules.h"

#include <algorithm>
#include <cmath>

#include "core/cost.h"
#include "core/text.h"

namespace tilewise::cuda {

std::string short_refuses(const Kernel& kernel, const Problem& p, const DeviceInfo& device) {
  if (std::string text = refuses(kernel, p, device); !text.empty()) return text;
  if (p.seqlen_kv > kernel.tile_n)
    return cat("takes sequences of up to ", kernel.tile_n, " keys; given ", p.seqlen_kv);
  if (p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0)
    return cat("takes head_dim and head_dim_v that are multiples of 8; given ", p.head_dim, " and ",
               p.head_dim_v);
  if (p.batch_invariant)
    return "takes short sequences alone; batch_invariant asks for a row that sequences of any length take";
  return {};
}

// Every head is read and written once, whatever its length; where that takes less time, the products and
// weights of whole fragments.
Estimate short_estimate(const Kernel& kernel, const Problem& p, const DeviceInfo& device, const Schedule&) {
  // Sixteen keys of a fragment of queries, alone.
  constexpr double kBlockSeconds = 0.3e-6;
  constexpr double kShareOfUnit = 0.13;
  const Facts& facts = facts_of(kernel);
  const double rate = peak_rate(kernel.target, device) * kShareOfUnit;
  const double heads = full_sequences(p) * static_cast<double>(p.heads_q);
  const double rows = std::ceil(static_cast<double>(p.seqlen_q) / kernel.tile_m) * kernel.tile_m;
  const double keys = std::ceil(static_cast<double>(p.seqlen_kv) / kernel.tile_m) * kernel.tile_m;
  const double walked = heads * rows * keys;
  Estimate e;
  e.bytes = ideal_bytes(p);
  e.waste = walked > 0 ? std::clamp(1.0 - visible_pairs(p) / walked, 0.0, 1.0) : 0.0;
  e.waves = heads / (multiprocessors_of(device) * facts.blocks);
  const double read = bandwidth(device) * facts.percent / 100.0;
  e.seconds = kLaunchSeconds + kBlockSeconds * keys / kernel.tile_m +
              std::max(e.bytes / read, walked * 2.0 * (facts.head_dim + facts.head_dim_v) / rate);
  return e;
}

}  // namespace tilewise::cuda
