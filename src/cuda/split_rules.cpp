#include "cuda/split_rules.h"

#include <algorithm>
#include <cmath>

#include "core/cost.h"
#include "core/text.h"
#include "cuda/split_sizes.h"

namespace tilewise::cuda {
namespace {

// Tiles of rows of a key head: queries times the heads of their group.
double row_tiles(const Kernel& kernel, const Problem& p) {
  return std::ceil(static_cast<double>(p.seqlen_q) * static_cast<double>(p.heads_q / p.heads_kv) /
                   kernel.tile_m);
}

// Whether the kernel of sm90/split_plain.cuh takes it, as far as a problem says.
bool is_plain(const Kernel& kernel, const Problem& p, const DeviceInfo& device, const Schedule& s) {
  constexpr int64_t kSequences = 256;
  return device.isa == 90 && kernel.tile_m == kSplitRows && row_tiles(kernel, p) == 1.0 &&
         p.head_dim == 128 && p.head_dim_v == 128 && p.batch <= kSequences && p.softcap == 0.0f &&
         !(p.features & TILEWISE_HAS_ALIBI) && s.num_splits == 0;
}

}  // namespace

std::string split_refuses(const Kernel& kernel, const Problem& p, const DeviceInfo& device) {
  if (std::string text = refuses(kernel, p, device); !text.empty()) return text;
  const double rows = static_cast<double>(p.seqlen_q) * static_cast<double>(p.heads_q / p.heads_kv);
  const double entries = static_cast<double>(p.batch) * row_tiles(kernel, p) *
                         (p.batch_invariant ? static_cast<double>(p.seqlen_kv) / kSplitChunk + 1.0 : 1.0);
  const double steps = static_cast<double>(p.batch * p.heads_kv) * row_tiles(kernel, p) *
                       (static_cast<double>(p.seqlen_kv) / kSplitGroup + 2.0);
  if (std::max({rows, entries, steps, static_cast<double>(p.num_pages)}) > kSplitMostRows)
    return cat(
        "takes up to 2^30 rows of a group of heads, tiles of them, groups of 16 keys of these and pages; "
        "given ",
        rows, ", ", entries, ", ", steps, " and ", p.num_pages);
  return {};
}

Schedule split_schedule(const Kernel& kernel, const Problem& p, const DeviceInfo&, int) {
  Schedule s{.threads = 1, .tile_m = kernel.tile_m, .tile_n = kernel.tile_n, .num_splits = 0};
  if (p.batch_invariant)
    s.num_splits = static_cast<int>(std::max<int64_t>(1, (p.seqlen_kv + kSplitChunk - 1) / kSplitChunk));
  return s;
}

int64_t split_scratch(const Kernel& kernel, const Problem& p, const Schedule& s) {
  const int64_t units = p.batch * p.heads_kv * static_cast<int64_t>(row_tiles(kernel, p));
  const int64_t rows = split_part_rows(kernel.tile_m, p.seqlen_q * (p.heads_q / p.heads_kv));
  const int64_t cuts = kernel.tile_m == kWideRows && !s.num_splits ? 8 * kSplitBlocks : 0;  // WideArgs::cuts
  return cuts +
         split_scratch_bytes(split_part_floats(rows, facts_of(kernel).head_dim_v), units, s.num_splits);
}

// The time to read what is seen, once from memory and, for each further tile of rows, from the cache behind
// it.
Estimate split_estimate(const Kernel& kernel, const Problem& p, const DeviceInfo& device, const Schedule& s) {
  // On the scale of the other rows' kLaunchSeconds; alone a sequence of 1k keys takes 9.8 us on an H200.
  constexpr double kSplitSeconds = 5e-6, kJoinSeconds = 3e-6;
  // Of a unit: a tile of rows and a key head, whatever its length, hidden by reading where that takes longer:
  // 16,384 units of 32 keys took 545 us.
  constexpr double kUnitSeconds = 4.4e-6;
  // What shows of it beside reading, but in the plain kernel: 16,384 units of 512 keys took 1192 us.
  const double end_of_unit = kernel.tile_m == kSplitRows && !is_plain(kernel, p, device, s) ? 1.9e-6 : 0.0;
  // A block alone reads at twice its share of the bandwidth. Further tiles of rows find little in the cache:
  // four took 3.8 times what one did.
  constexpr double kBlockOverShare = 2.0, kCacheOverMemory = 1.05;
  const double share_of_unit = kernel.tile_m == kSplitRows ? 0.25 : 0.45;
  const Facts& facts = facts_of(kernel);
  const double read = bandwidth(device) * facts.percent / 100.0;
  const double tiles = row_tiles(kernel, p), rows = std::max(static_cast<double>(p.seqlen_q), 1.0);
  const double seen = std::min(static_cast<double>(p.seqlen_kv), visible_pairs_per_head(p) / rows + rows);
  const double key_heads = full_sequences(p) * static_cast<double>(p.heads_kv);
  const double row_bytes = bits_of(kernel.stored_kv()) / 8.0 * static_cast<double>(p.head_dim + p.head_dim_v);
  const double keys = key_heads * seen * row_bytes;
  const double multiprocessors = multiprocessors_of(device);
  const double rate = peak_rate(kernel.target, device) * share_of_unit;
  const double walked = key_heads * tiles * kernel.tile_m * seen;
  Estimate e;
  e.bytes = ideal_bytes(p) -
            static_cast<double>(p.batch * p.heads_kv) * row_bytes * (static_cast<double>(p.seqlen_kv) - seen);
  e.waste = walked > 0 ? std::clamp(1.0 - visible_pairs(p) / walked, 0.0, 1.0) : 0.0;
  constexpr double kLeastShare = 64;  // keys of a block
  const double steps = key_heads * tiles * std::ceil(seen / kLeastShare);
  e.waves = std::min(1.0, steps / multiprocessors);
  const double product = walked * 2.0 * (facts.head_dim + facts.head_dim_v) / rate;
  // Filling what a problem leaves of the row's dimensions with zeros is not free.
  const double padding =
      1.0 - static_cast<double>(p.head_dim + p.head_dim_v) / (facts.head_dim + facts.head_dim_v);
  e.seconds = kSplitSeconds + (s.num_splits ? kJoinSeconds : 0.0) +
              std::max(kUnitSeconds * key_heads * tiles / multiprocessors,
                       std::max({e.bytes / read, tiles * keys / (read * kCacheOverMemory), product}) /
                               std::clamp(e.waves * kBlockOverShare, 0.05, 1.0) * (1.0 + padding) +
                           end_of_unit * key_heads * tiles / multiprocessors);
  return e;
}

}  // namespace tilewise::cuda
