#include "cpu/rules.h"

#include <algorithm>
#include <cmath>

#include "core/cache.h"
#include "core/cost.h"
#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/row_forward.h"
#include "cpu/small.h"
#include "cpu/standard.h"

namespace tilewise::cpu {
namespace {

struct IsaName {
  Target target;
  uint64_t bit;
  const char* name;
};
constexpr IsaName kIsas[] = {
    // as `refuses` says it
    {Target::scalar, TILEWISE_ISA_SCALAR, "any CPU"},
    {Target::avx2, TILEWISE_ISA_AVX2, "AVX2 with FMA and F16C"},
    {Target::avx512, TILEWISE_ISA_AVX512, "AVX-512 (F BW CD DQ VL)"},
    {Target::avx512bf16, TILEWISE_ISA_AVX512BF16, "AVX-512 with BF16"},
    {Target::neon, TILEWISE_ISA_NEON, "NEON"},
};

const IsaName& isa_of(Target target) {
  for (const IsaName& isa : kIsas)
    if (isa.target == target) return isa;
  return kIsas[0];
}

BackwardSizes backward_sizes(const Problem& p, const Schedule& s) {
  return BackwardSizes(p.batch, p.heads_q, p.heads_kv, p.seqlen_q, p.seqlen_kv, p.packed_q ? p.total_q : -1,
                       p.head_dim, p.head_dim_v, (p.wants & TILEWISE_WANT_DSINKS) != 0, s);
}

ForwardSizes forward_sizes(const Problem& p, const Schedule& s) {
  return ForwardSizes(p.batch, p.heads_q, p.heads_kv, p.seqlen_q, p.head_dim, p.head_dim_v, s);
}

RowForwardSizes row_sizes(const Problem& p, const Schedule& s) {
  return RowForwardSizes(p.heads_q, p.heads_kv, p.seqlen_q, p.seqlen_kv, p.head_dim, p.head_dim_v, s);
}

// At most: heads that lie side by side share tasks.
int64_t row_tasks(const Problem& p, const Schedule& s) {
  return p.batch * p.heads_kv * row_sizes(p, s).parts;
}

// Parts of a head's keys that tasks of their own walk: where there are few tasks else, and never for the sake
// of the bits, which are cut at kSplitKeys anyway.
int row_splits(const Problem& p, const DeviceInfo& device, const Schedule& s) {
  constexpr int64_t kTasksPerCore = 64;
  const int64_t chunks = row_forward_chunks(p.seqlen_kv);
  if (row_tasks(p, s) >= kTasksPerCore * std::max(device.cores, 1) || device.cores <= 1) return 1;
  return static_cast<int>(std::min<int64_t>(chunks, 1 << 20));
}

SmallSizes small_sizes(const Problem& p, const Schedule& s) {
  return SmallSizes(p.heads_q, p.heads_kv, p.seqlen_q, p.seqlen_kv, p.head_dim, p.head_dim_v, s);
}

// Workers that find a task; more would only own scratch.
int64_t tasks_of(const Kernel& kernel, const Problem& p, const Schedule& s) {
  if (kernel.form == Form::small) return p.batch * small_sizes(p, s).tasks;
  if (kernel.op == Op::backward)
    return std::max(p.batch * p.heads_kv * s.num_splits, p.batch * p.heads_q * int64_t{s.num_splits > 1});
  if (kernel.form == Form::standard) return p.batch * p.heads_q;
  if (kernel.form == Form::rows) return row_tasks(p, s) * row_sizes(p, s).chunks;
  return forward_sizes(p, s).tasks;
}

// fp32 FMA rate of one core as a share of the device's best instruction set.
double relative_rate(Target target, uint64_t isa) {
  switch (target) {
    case Target::scalar:
      return (isa & TILEWISE_ISA_AVX512) ? 1.0 / 24 : ((isa & TILEWISE_ISA_AVX2) ? 1.0 / 12 : 1.0 / 6);
    case Target::avx2:
      return (isa & TILEWISE_ISA_AVX512) ? 0.55 : 1.0;
    default:
      return 1.0;
  }
}

int64_t lanes_of(Target target) {
  switch (target) {
    case Target::avx512:
    case Target::avx512bf16:
      return 16;
    case Target::avx2:
      return 8;
    case Target::neon:
      return 4;
    default:
      return 1;
  }
}

// Of dots of bf16 pairs to fp32 multiply-adds.
double dots_ratio(const DeviceInfo& device) {
  constexpr double kUnknown = 0.5;
  return device.bf16_dots > 0.0 ? device.bf16_dots : kUnknown;
}

// Share of that rate that the products reach, by measurement (docs/performance/cpu.md, decode.md).
constexpr double kFusedEfficiency = 0.85;
// By dots of pairs only the products are faster or slower, by the device's ratio: what is left takes as long.
constexpr double kDotProducts = 1.04, kDotRest = 0.14;  // of an operation's time at the peak of fp32
constexpr double kDotLane = 0.65;                       // of kLaneSeconds: pairs are packed as they lie
constexpr double kNarrowEfficiency = 0.65;              // fused, with one vector of query lanes or less
constexpr double kStandardEfficiency = 0.80;
constexpr double kRowsEfficiency = 0.75;    // with rows that share each read of a key
constexpr double kOneRowEfficiency = 0.35;  // and with one row
// By dots, of the time of rows by fp32: measured 0.72 with a ratio of 2, from L2, 1 to 8 heads of a group.
constexpr double kDotRowProducts = 0.90, kDotRowRest = 0.27;
constexpr double kDotRow = 0.5;      // of kRowSeconds
constexpr double kShortTile = 1.14;  // of the products, where a tile has half of the keys
// What is left of the shorter of arithmetic and fetching beside the longer; by such tiles from memory.
constexpr double kOverlap = 0.3, kShortTileOverlap = 0.15;
// Beside the products: packing a query lane and writing its output; reading and writing one row.
constexpr double kLaneSeconds = 4e-6 / 64;
constexpr double kRowSeconds = 0.2e-6;  // 0.06 measured: sets the change to fused, docs/performance/decode.md
constexpr double kSmallEfficiency = 0.75;
// Of small, with an L1 of 32 KB: rows that are read where they lie, often 3 KB apart, fall on few of its
// sets. AVX-512, which such a processor runs in halves, has time for that.
// Keys of 16 bits are widened, or dotted, for each row of a head's one query again.
constexpr double kSmallOneQuery16 = 0.48;
constexpr double kFewSetsEfficiency = 0.62, kHalvedEfficiency = 0.80;
constexpr int64_t kWideL1 = 48 << 10;
constexpr double kSmallBackwardEfficiency = 0.85;
constexpr double kSmallBackwardBf16 = 0.72;  // by dots too: the gradients are products of fp32
constexpr double kDotRowsForward = 48, kDotRowsBackward = 20, kDotStrip = 4;  // scores of a mask, by 4 rows
constexpr double kSmallHeadSeconds = 0.03e-6, kSmallRowSeconds = 0.012e-6;
// An element of q, k, v or o of 16 bits, and all that backward does to it; bf16 by fast dots costs nothing.
constexpr double kSmallF16Seconds = 0.01e-9, kSmallBf16Seconds = 0.05e-9;
// The same of the backward, which packs and writes twice as much in small tiles, and more in fused ones.
constexpr double kSmallBackward = 2.0, kFusedBackward = 2.4;

}  // namespace

std::string refuses(const Kernel& kernel, const Problem& problem, const DeviceInfo& device) {
  if (device.kind != TILEWISE_CPU) return "runs on a CPU; the device is not one";
  const IsaName& isa = isa_of(kernel.target);
  if ((device.isa & isa.bit) == 0) return std::string("needs ") + isa.name + ", which this CPU does not have";
  const auto wrong = [&](const char* tensor, int32_t dtype) {
    return std::string("stores k and v as ") + name_of(kernel.stored_kv()) + "; " + tensor + " is " +
           name_of(static_cast<DType>(dtype));
  };
  if (kernel.form == Form::standard && problem.page_size > 0)
    return "reads all keys of a sequence in one piece; the problem's lie in pages";
  if (kernel.form == Form::standard && problem.batch_invariant)
    return "holds a whole score matrix, so its memory follows the batch; batch_invariant asks for a fused "
           "kernel";
  if (kernel.form == Form::rows && problem.dropout_p > 0.0f)
    return "keeps no dropout mask; the problem has dropout";
  if (kernel.form == Form::small) {
    if (is_cache(problem))
      return std::string("reads keys from their sequence's own place; the problem's lie in ") +
             (problem.page_size > 0 ? "pages" : "slots of a cache");
    const char* extra = problem.softcap > 0.0f                  ? "a softcap"
                        : problem.has(TILEWISE_HAS_BIAS)        ? "a bias"
                        : problem.has(TILEWISE_HAS_MASK)        ? "a mask"
                        : problem.has(TILEWISE_HAS_ALIBI)       ? "ALiBi slopes"
                        : problem.has(TILEWISE_HAS_SEGMENT_IDS) ? "segment ids"
                        : problem.dropout_p > 0.0f              ? "dropout"
                                                                : nullptr;
    if (extra) return std::string("takes plain scores within intervals of keys; the problem has ") + extra;
    const int64_t group = problem.heads_q / std::max<int64_t>(problem.heads_kv, 1);
    if (problem.seqlen_q > kernel.tile_m / group)
      return "holds the rows of a key head in one tile, up to " + std::to_string(kernel.tile_m) +
             " queries x query heads; the problem has " + std::to_string(problem.seqlen_q) + " x " +
             std::to_string(group);
    if (problem.seqlen_kv > kernel.tile_n)
      return "holds the keys of a head in one tile, up to " + std::to_string(kernel.tile_n) +
             "; seqlen_kv is " + std::to_string(problem.seqlen_kv);
    if (problem.wants & TILEWISE_WANT_DSINKS) return "does not make dsinks";
    if (problem.batch_invariant)
      return "takes no sequence that is longer, so which kernel runs would follow from the longest of the "
             "batch; "
             "batch_invariant asks for a fused kernel";
  }
  const auto stored = static_cast<int32_t>(kernel.stored_kv());
  if (problem.dtype_k != stored) return wrong("k", problem.dtype_k);
  if (problem.dtype_v != stored) return wrong("v", problem.dtype_v);
  if (kernel.target == Target::avx512bf16 && kernel.op == Op::backward && problem.dtype_dout != stored)
    return std::string("takes dout in bf16, as it multiplies it; dout is ") +
           name_of(static_cast<DType>(problem.dtype_dout));
  const int64_t dim = std::max(problem.head_dim, problem.head_dim_v);
  if (dim > kMaxHeadDim)
    return "takes head_dim and head_dim_v up to " + std::to_string(kMaxHeadDim) + "; the larger is " +
           std::to_string(dim);
  const int64_t rows = std::max(problem.seqlen_q, problem.seqlen_kv);
  if (rows > (1 << 30)) return "takes sequences of up to 2^30 rows; the longest has " + std::to_string(rows);
  return {};
}

Schedule schedule(const Kernel& kernel, const Problem& problem, const DeviceInfo& device, int threads) {
  Schedule s;
  s.threads = std::max(threads, 1);
  s.tile_m = kernel.tile_m;
  s.tile_n = kernel.tile_n;
  if (kernel.op == Op::backward && kernel.form == Form::fused && !problem.batch_invariant)
    s.num_splits =
        backward_splits(problem.batch, problem.heads_kv, problem.seqlen_kv, std::max(device.cores, 1));
  if (kernel.form == Form::rows) s.num_splits = row_splits(problem, device, s);
  s.threads = static_cast<int>(std::clamp<int64_t>(tasks_of(kernel, problem, s), 1, s.threads));
  return s;
}

int64_t scratch_bytes(const Kernel& kernel, const Problem& p, const Schedule& schedule) {
  if (kernel.form == Form::small)
    return small_worker_bytes(small_sizes(p, schedule), kernel.op == Op::backward) * schedule.threads;
  if (kernel.op == Op::backward) return backward_scratch_bytes(backward_sizes(p, schedule));
  if (kernel.form == Form::standard) {
    const StandardSizes sizes(p.seqlen_q, p.seqlen_kv, p.head_dim, p.head_dim_v, schedule);
    return standard_worker_bytes(sizes) * schedule.threads;
  }
  if (kernel.form == Form::rows) {
    const RowForwardSizes sizes = row_sizes(p, schedule);
    return row_forward_worker_bytes(sizes) * schedule.threads +
           row_forward_partial_bytes(sizes, p.batch * p.heads_kv);
  }
  return forward_worker_bytes(forward_sizes(p, schedule)) * schedule.threads;
}

Estimate estimate(const Kernel& kernel, const Problem& problem, const DeviceInfo& device,
                  const Schedule& schedule) {
  const double cores = std::max(1, std::min(schedule.threads, std::max(device.cores, 1)));
  const double rate =
      std::max(device.core_gflops, 1.0) * 1e9 * relative_rate(kernel.target, device.isa) * cores;
  const double bandwidth = std::max(device.memory_gbps, 1.0) * 1e9;
  Estimate e;
  e.bytes = ideal_bytes(problem);
  const double rows = static_cast<double>(std::max<int64_t>(problem.seqlen_q, 1)) *
                      static_cast<double>(problem.heads_q / std::max<int64_t>(problem.heads_kv, 1));
  const double key_heads = full_sequences(problem) * static_cast<double>(problem.heads_kv);
  double work = operations(problem) / kFusedEfficiency;
  const double padded =  // rows, to whole vectors of query lanes
      static_cast<double>(multiple_of(lanes_of(kernel.target), static_cast<int64_t>(rows)));
  double beside = key_heads * padded * kLaneSeconds;  // seconds of one core
  Problem full = problem;                             // where every pair is computed, hidden or not
  full.causal = 0;
  full.window_left = full.window_right = -1;
  const bool by_dots = kernel.target == Target::avx512bf16;
  if (kernel.form == Form::standard) {
    // The score matrices go to memory and back where they leave the cache.
    work = operations(full) / kStandardEfficiency;
    const double q_rows = static_cast<double>(std::max<int64_t>(problem.seqlen_q, 1));
    work *=
        static_cast<double>(multiple_of(schedule.tile_m, problem.seqlen_q)) / q_rows;  // whole tiles of lanes
    const double heads = std::max(1.0, full_sequences(problem) * static_cast<double>(problem.heads_q));
    const double one_head = score_matrix_bytes(problem) / heads;
    if (one_head > static_cast<double>(device.l2_bytes)) e.bytes += 2.0 * score_matrix_bytes(problem);
  } else if (kernel.form == Form::rows) {
    constexpr double kSharing = 4;
    const double sharing = (std::min(rows, kSharing) - 1) / (kSharing - 1);
    work = operations(problem) / (kOneRowEfficiency + sharing * (kRowsEfficiency - kOneRowEfficiency));
    beside = key_heads * rows * kRowSeconds;
    if (kernel.tile_n < kMaxRowKeys) work *= kShortTile;
    if (by_dots) {
      work *= kDotRowProducts / dots_ratio(device) + kDotRowRest;
      beside *= kDotRow;
    }
  } else if (kernel.form == Form::small) {
    const bool backward = kernel.op == Op::backward, fast_dots = by_dots && dots_ratio(device) >= 1;
    const bool narrow = device.l1_bytes < kWideL1 && rows > static_cast<double>(lanes_of(kernel.target));
    const bool bf16 = kernel.stored_kv() == DType::bf16;
    const bool one_query_16 = !backward && problem.seqlen_q == 1 && kernel.stored_kv() != DType::f32;
    const double efficiency = backward       ? (bf16 ? kSmallBackwardBf16 : kSmallBackwardEfficiency)
                              : one_query_16 ? kSmallOneQuery16
                              : !narrow      ? kSmallEfficiency
                              : kernel.target == Target::avx512 && !bf16 ? kHalvedEfficiency
                                                                         : kFewSetsEfficiency;
    // What is hidden is left out but for half a strip of lanes.
    const double all = operations(full), visible = operations(problem);
    const double strip =
        fast_dots && rows <= (backward ? kDotRowsBackward : kDotRowsForward) ? kDotStrip : kSmallStrip;
    const double edge = all * strip / 2 / static_cast<double>(std::max<int64_t>(problem.seqlen_kv, 1));
    work = (visible < all ? std::min(all, visible + edge) : all) / efficiency;
    if (by_dots)
      work *= 1 + (backward ? 0.4 : 0.5) * std::max(1 / dots_ratio(device) - 1, 0.0);  // the scores
    beside = key_heads * (kSmallHeadSeconds + rows * kSmallRowSeconds) * (backward ? kSmallBackward : 1.0);
    if (kernel.stored_kv() != DType::f32 && !fast_dots) {
      const double elements = key_heads * (rows + static_cast<double>(problem.seqlen_kv)) *
                              static_cast<double>(problem.head_dim + problem.head_dim_v);
      beside += elements * (kernel.stored_kv() == DType::f16 ? kSmallF16Seconds : kSmallBf16Seconds) *
                (backward ? kSmallBackward : 1.0);
    }
  } else {
    if (by_dots) {
      work = operations(problem) * (kDotProducts / dots_ratio(device) + kDotRest);
      beside *= kDotLane;
    }
    if (kernel.op == Op::forward && rows <= static_cast<double>(lanes_of(kernel.target)))
      work *= kFusedEfficiency / kNarrowEfficiency;
    work *= std::max(padded / rows, 1.0);
    // On an edge of the mask a block computes about half of its lanes for nothing.
    const double all = operations(full), visible = operations(problem);
    const double edge =
        all * schedule.tile_m / 2 / static_cast<double>(std::max<int64_t>(problem.seqlen_kv, 1));
    if (visible > 0 && visible < all) work *= std::min(all, visible + edge) / visible;
    if (kernel.op == Op::backward) beside *= kFusedBackward;
  }
  constexpr double kCallSeconds = 2e-6;
  beside /= relative_rate(kernel.target, device.isa) * cores;
  // Arithmetic and fetching overlap, not wholly (measured: rows against fused, one query, 1,024 to 4,096
  // keys); better where two tiles on their way take less of L2.
  const bool few_on_the_way = kernel.form == Form::rows && kernel.tile_n < kMaxRowKeys &&
                              e.bytes > static_cast<double>(device.l3_bytes) / 2;
  const double computing = work / rate + beside, fetching = e.bytes / bandwidth;
  e.seconds = kCallSeconds + std::max(computing, fetching) +
              (few_on_the_way ? kShortTileOverlap : kOverlap) * std::min(computing, fetching);
  return e;
}

}  // namespace tilewise::cpu
