#include "cuda/rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/cache.h"
#include "core/cost.h"
#include "core/problem_fields.h"
#include "core/text.h"
#include "cuda/packed_heads.h"
#include "cuda/split_sizes.h"

namespace tilewise::cuda {
namespace {

std::string capability_text(uint64_t capability) { return cat(capability / 10, ".", capability % 10); }

// Rows of backward know `deterministic` alone, in a problem as in a call.
Problem as_rows_know(Problem p) {
  p.deterministic = orders_sums(p) ? 1 : 0;
  return p;
}

// Empty where code of `target` runs on the capability.
std::string refuses_capability(Target target, uint64_t capability) {
  const auto needs = [&](const char* what) {
    return cat("needs compute capability ", what, "; this device has ", capability_text(capability));
  };
  switch (target) {
    case Target::sm90:
      return capability == 90 ? "" : needs("9.0 (Hopper)");
    case Target::sm80:
      return capability >= 80 ? "" : needs("8.0 or more");
    default:
      return capability >= 75 ? "" : needs("7.5 or more");
  }
}

// What a row with score simple leaves out; null = nothing of it is asked for.
const char* general_feature(const Problem& p) {
  if (p.has(TILEWISE_HAS_BIAS)) return "a bias";
  if (p.has(TILEWISE_HAS_MASK)) return "a mask";
  if (p.has(TILEWISE_HAS_SEGMENT_IDS)) return "segment ids";
  if (p.has(TILEWISE_HAS_KV_RANGES)) return "kv_ranges";
  return p.dropout_p > 0.0f ? "dropout" : nullptr;
}

// Empty where a tensor core row reads and writes the problem's dtypes (the planner has looked at q, k and v):
// what its tiles move as they are has the row's own, what is converted on the way may be f32.
std::string refuses_dtypes(const Kernel& kernel, const Problem& p) {
  const struct {
    const char* name;
    int32_t dtype;
    bool used, converted;
  } tensors[] = {{"o", p.dtype_o, !p.has(TILEWISE_HAS_DELTA), true},
                 {"dout", p.dtype_dout, kernel.op == Op::backward, false},
                 {"dq", p.dtype_dq, (p.wants & TILEWISE_WANT_DQ) != 0, true},
                 {"dk", p.dtype_dk, (p.wants & TILEWISE_WANT_DK) != 0, true},
                 {"dv", p.dtype_dv, (p.wants & TILEWISE_WANT_DV) != 0, true}};
  for (const auto& t : tensors) {
    if (!t.used || t.dtype == static_cast<int32_t>(kernel.dtype)) continue;
    const bool or_f32 = t.converted && kernel.dtype != DType::f32;
    if (!or_f32 || t.dtype != TILEWISE_F32)
      return cat("takes ", t.name, " in ", name_of(kernel.dtype), or_f32 ? " or f32" : "", "; given ",
                 name_of(static_cast<DType>(t.dtype)));
  }
  return {};
}

// Products of head_dim and of head_dim_v columns that a visible pair costs, each 2 FLOP a column.
struct Products {
  double of_dim, of_dim_v;
};
Products products_of(Op op) { return op == Op::backward ? Products{3, 2} : Products{1, 1}; }

// Tiles of a head that blocks start from: of queries, in backward of keys.
int64_t tiles_of(const Kernel& kernel, const Problem& p) {
  return kernel.op == Op::backward ? (p.seqlen_kv + kernel.tile_n - 1) / kernel.tile_n
                                   : (p.seqlen_q + kernel.tile_m - 1) / kernel.tile_m;
}

// Pairs of the key tiles that a head of a full sequence walks: each tile of m queries rounds its first and
// last key up to whole tiles of n.
double walked_by_head(int tile_m, int tile_n, const Problem& p) {
  const double m = tile_m, n = tile_n;
  const double rows = std::ceil(static_cast<double>(p.seqlen_q) / m) * m;
  const double keys = std::ceil(static_cast<double>(p.seqlen_kv) / n) * n;
  const int edges = (p.causal || p.window_right >= 0 ? 1 : 0) + (p.window_left >= 0 ? 1 : 0);
  // Rows that only fill the last tile cost what the others do.
  const double visible =
      visible_pairs_per_head(p) * rows / static_cast<double>(std::max<int64_t>(p.seqlen_q, 1));
  if (edges == 0) return rows * keys;
  // Along an edge a tile row walks half of m keys more than its rows see on average, and what rounding up to
  // key tiles adds where an edge moves by m.
  const double rounding = n - std::gcd(tile_m, tile_n);
  return std::min(rows * keys, visible + edges * rows * 0.5 * (m + rounding));
}

// What a sequence's heads come to: tiles that blocks start from (of queries, in backward of keys), and pairs
// that are walked; how many heads read their keys, each anew.
struct Walk {
  double tiles, pairs, readers;
};
Walk walk_of(const Kernel& kernel, const Problem& p) {
  if (!facts_of(kernel).packs_heads) {
    const auto heads = static_cast<double>(p.heads_q);
    return {heads * static_cast<double>(tiles_of(kernel, p)),
            heads * walked_by_head(kernel.tile_m, kernel.tile_n, p), heads};
  }
  // A warpgroup walks what its own 64 rows see.
  const PackedHeads packed = pack_heads(p.seqlen_q, p.heads_q / p.heads_kv, kernel.tile_m);
  const double packs = static_cast<double>(p.heads_kv * packed.packs);
  return {packs * static_cast<double>(packed.tiles_m),
          packs * (kernel.tile_m >> packed.rows_log2) *
              walked_by_head(std::min(1 << packed.rows_log2, 64), kernel.tile_n, p),
          packs};
}

// Fitted to what rows take of a multiprocessor for a piece of n steps (docs/performance/forward_short.md).
double piece_seconds(const Kernel& kernel) {
  const Facts& facts = facts_of(kernel);
  if (facts.packs_heads) return 2.2e-6 / facts.blocks;
  const bool small_blocks = kernel.target == Target::sm90 && facts.blocks > 1;
  return (small_blocks ? 0.1e-6 : 0.4e-6) + 0.5e-6 * kernel.tile_m / 64.0;
}

}  // namespace

double matrix_rate(Target target, uint64_t capability) {
  switch (capability) {
    case 90:
      return target == Target::sm80 ? 2560 : 4096;
    case 80:
      return 2048;
    case 100:
    case 103:
      return 8192;
    default:
      return 1024;
  }
}

int fma_lanes(uint64_t capability) { return capability == 75 || capability == 80 ? 64 : 128; }

double multiprocessors_of(const DeviceInfo& device) { return std::max(device.cores, 1); }

double peak_rate(Target target, const DeviceInfo& device) {
  const double fma_rate = 2.0 * fma_lanes(device.isa);
  const double clock = std::max(device.core_gflops, 1.0) * 1e9 / fma_rate;
  return (target == Target::simt ? fma_rate : matrix_rate(target, device.isa)) * clock *
         multiprocessors_of(device);
}

double bandwidth(const DeviceInfo& device) { return std::max(device.memory_gbps, 1.0) * 1e9; }

std::string refuses(const Kernel& kernel, const Problem& p, const DeviceInfo& device) {
  const Facts& facts = facts_of(kernel);
  if (std::string text = refuses_capability(kernel.target, device.isa); !text.empty()) return text;
  if (p.head_dim > facts.head_dim || p.head_dim_v > facts.head_dim_v)
    return cat("takes head_dim up to ", facts.head_dim, " and head_dim_v up to ", facts.head_dim_v,
               "; given ", p.head_dim, " and ", p.head_dim_v);
  if (is_cache(p) && kernel.target != Target::simt && kernel.form != Form::split)
    return cat("reads keys from their sequence's own place; the problem's lie in ",
               p.page_size ? "pages" : "slots of a cache");
  if (facts.score == ScoreKind::simple) {
    if (const char* feature = general_feature(p))
      return cat("has no code for ", feature, "; a row with score general has");
  }
  if (kernel.op == Op::backward) {
    if (const char* rule = facts.cannot(as_rows_know(p))) return rule;
  }
  if (kernel.target != Target::simt) {
    if (std::string text = refuses_dtypes(kernel, p); !text.empty()) return text;
    constexpr int64_t kMostRows = int64_t{1} << 30;  // row indices are 32-bit
    const int64_t rows = std::max({p.seqlen_q, p.seqlen_kv, p.total_q, p.total_kv});
    const int64_t tiles = p.batch * p.heads_q * tiles_of(kernel, p);
    if (rows > kMostRows || tiles > kMostRows)
      return cat("takes up to 2^30 rows and tiles of them; given ", rows, " and ", tiles);
  }
  if (p.alignment < facts.alignment)
    return cat("needs bases and outer strides of q, k, v, o that are multiples of ", facts.alignment,
               " bytes; the problem promises ", p.alignment);
  return {};
}

Schedule schedule(const Kernel& kernel, const Problem&, const DeviceInfo&, int) {
  return {.threads = 1, .tile_m = kernel.tile_m, .tile_n = kernel.tile_n, .num_splits = 1};
}

int64_t scratch_bytes(const Kernel& kernel, const Problem& p, const Schedule&) {
  return kernel.op == Op::backward ? facts_of(kernel).scratch(as_rows_know(p)) : 0;
}

Estimate estimate(const Kernel& kernel, const Problem& p, const DeviceInfo& device, const Schedule&) {
  const Facts& facts = facts_of(kernel);
  const double multiprocessors = multiprocessors_of(device);
  const double rate = peak_rate(kernel.target, device) * facts.percent / 100.0;
  const Walk walk = walk_of(kernel, p);
  const double walked = full_sequences(p) * walk.pairs, visible = visible_pairs(p);
  const double tiles = full_sequences(p) * walk.tiles;
  // Tiles of the matrix units have the row's dimensions, whatever the problem fills of them.
  const bool padded = kernel.target != Target::simt;
  const auto dim = static_cast<double>(padded ? facts.head_dim : p.head_dim);
  const auto dim_v = static_cast<double>(padded ? facts.head_dim_v : p.head_dim_v);
  const auto [of_dim, of_dim_v] = products_of(kernel.op);
  const double asked =
      visible * (of_dim * static_cast<double>(p.head_dim) + of_dim_v * static_cast<double>(p.head_dim_v));
  const double work = walked * (of_dim * dim + of_dim_v * dim_v);  // multiply-adds
  Estimate e;
  e.bytes = ideal_bytes(p);
  e.waste = walked > 0 ? 1.0 - std::min(1.0, asked / work) : 0.0;
  e.waves = tiles / (multiprocessors * facts.blocks);
  // Blocks share their multiprocessor, so a round is over when all of them are; the last one is not full.
  // Under a causal mask long tiles go first and short ones fill the gaps.
  const bool even = !p.causal && p.window_left < 0 && p.window_right < 0;
  const double rounds = e.waves <= 1.0 ? 1.0 : even ? std::ceil(e.waves) : e.waves + 0.25;
  const double idle = e.waves > 0 ? std::max(1.0, rounds / e.waves) : 1.0;
  double read = e.bytes;
  // With one tile of queries a key is worth little work, and each query head reads it anew: heads of a group
  // from the L2, at 1.1 times the memory's rate in all (docs/performance/decode_cuda.md).
  if (padded && kernel.op == Op::forward && tiles_of(kernel, p) == 1)
    read = std::max(read, visible / static_cast<double>(p.seqlen_q) * walk.readers /
                              static_cast<double>(p.heads_q) * 2.0 *
                              static_cast<double>(p.head_dim + p.head_dim_v) / 1.1);
  // What starting and ending a piece of work costs a multiprocessor beside its products, and more where
  // pieces of a persistent block differ in length (docs/performance/forward_short.md).
  const bool starts = padded && kernel.op == Op::forward;
  const bool differ = !even && tiles_of(kernel, p) > 1;
  const double uneven = !differ ? 1.0 : facts.packs_heads ? 1.6 : facts.blocks == 1 ? 1.25 : 1.0;
  const double piece = starts ? piece_seconds(kernel) * uneven : 0.0;
  // A block alone on its multiprocessor is faster than its share of it, and a team still more.
  const double share_alone = facts.packs_heads ? 1.15 : facts.blocks == 2 ? 1.5 : 2.0;
  const double alone = starts && kernel.target == Target::sm90 && e.waves * facts.blocks <= 1.0
                           ? std::min(1.0, share_alone / facts.blocks)
                           : 1.0;
  // Blocks that stay begin slowly: with a producer, of teams with two pieces at once.
  const bool stays = starts && kernel.target == Target::sm90 && (facts.blocks == 1 || facts.packs_heads);
  const double begin = facts.packs_heads ? 1.2e-6 : stays ? 1e-6 : 0.0;
  // Of the bandwidth, where heads share tiles, and where a tile is mostly empty: one block walks all keys of
  // a head (docs/performance/decode_cuda.md).
  const double share = walk.readers < static_cast<double>(p.heads_q)            ? 0.75
                       : padded && device.isa == 90 && p.seqlen_q <= kSplitRows ? 0.88
                                                                                : 1.0;
  e.seconds = kLaunchSeconds + begin +
              std::max(std::max(1.0, tiles / multiprocessors) * piece + 2.0 * work * idle * alone / rate,
                       read / (bandwidth(device) * share));
  return e;
}

}  // namespace tilewise::cuda
