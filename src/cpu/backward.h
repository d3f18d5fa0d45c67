// Sizes and scratch layout of the CPU backward: one definition for planning (counting) and running.
#ifndef TILEWISE_CPU_BACKWARD_H_
#define TILEWISE_CPU_BACKWARD_H_

#include <algorithm>
#include <cstdint>

#include "core/arena.h"
#include "core/kernel.h"
#include "cpu/forward.h"
#include "cpu/lanes.h"

namespace tilewise::cpu {

constexpr int kMaxTileKeys = 192;  // tile_n of the fused backward

struct BackwardSizes {
  int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_kv, rows_q, head_dim, head_dim_v;
  int tile_m, tile_n, num_splits, workers;
  int64_t split_keys;         // keys of one split
  int64_t blocks;             // q blocks of one head that a worker holds at a time
  int64_t pitch_qk, pitch_v;  // row pitch of padded fp32 rows: whole widest vectors, any instruction set
  bool wants_sinks;

  // Packs of q and dO in both directions and dQ: what every key tile meets again. More than this falls out of
  // an L2 of 2 MB, beside the tiles (measured at seqlen 2048, docs/performance/cpu.md).
  static constexpr int64_t kPackedBytes = 1280 * 1024;
  static int64_t block_floats(int64_t d_qk, int64_t d_v, int64_t tile_m) {
    return (3 * d_qk + 2 * d_v) * tile_m;
  }

  // total_q: of packed sequences, else -1.
  BackwardSizes(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seqlen_q, int64_t seqlen_kv,
                int64_t total_q, int64_t head_dim, int64_t head_dim_v, bool wants_sinks,
                const Schedule& schedule)
      : batch(batch),
        heads_q(heads_q),
        heads_kv(heads_kv),
        seqlen_q(seqlen_q),
        seqlen_kv(seqlen_kv),
        rows_q(total_q >= 0 ? total_q : batch * seqlen_q),
        head_dim(head_dim),
        head_dim_v(head_dim_v),
        tile_m(schedule.tile_m),
        tile_n(schedule.tile_n),
        num_splits(schedule.num_splits),
        workers(schedule.threads),
        split_keys(std::max<int64_t>(multiple_of(tile_n, (seqlen_kv + num_splits - 1) / num_splits), tile_n)),
        blocks(std::clamp<int64_t>(kPackedBytes / (block_floats(head_dim, head_dim_v, tile_m) * 4), 1,
                                   std::max<int64_t>((seqlen_q + tile_m - 1) / tile_m, 1))),
        pitch_qk(multiple_of(16, head_dim)),
        pitch_v(multiple_of(16, head_dim_v)),
        wants_sinks(wants_sinks) {}
};

// Shared by all workers.
struct BackwardShared {
  float* dq_parts;     // [num_splits][heads_q][rows_q][head_dim], unscaled; only where num_splits > 1
  double* sink_parts;  // [batch][heads_q]

  BackwardShared(Arena& arena, const BackwardSizes& s)
      : dq_parts(arena.take<float>(s.num_splits > 1 ? s.num_splits * s.heads_q * s.rows_q * s.head_dim : 0)),
        sink_parts(arena.take<double>(s.wants_sinks ? s.batch * s.heads_q : 0)) {}
};

// How far a q block of a head is: its rows are packed when a key tile first needs them, and its dQ is written
// after the last one, so that both wait for memory while products run.
enum class BlockState : uint8_t { untouched, packed, written };

// One worker's, for one (batch, key head, split) or one tile of dbias.
struct BackwardScratch {
  Lanes* lanes;                        // [blocks]
  BlockState* state;                   // [blocks]
  float *q_t, *dout_t, *q, *dout;      // packs of `blocks` blocks
  float *lse, *delta;                  // [blocks * tile_m]
  float* dq_t;                         // [blocks][head_dim][tile_m]
  float *dk, *dv;                      // [split_keys][pitch]
  float *k_tile, *v_tile;              // [tile_n][pitch]: rows that are not read in place
  float *p, *ds, *add, *slope, *keep;  // [tile_n][tile_m]
  float* k_clear;                      // [tile_n][pitch_qk], where rows of K must be cleared
  float* bias_sum;                     // [tile_n][tile_m]
  float* row;                          // [max pitch]
  int32_t* segments;                   // [tile_n]

  BackwardScratch(Arena& a, const BackwardSizes& s) {
    const int64_t lanes_all = s.blocks * s.tile_m, tile = static_cast<int64_t>(s.tile_n) * s.tile_m;
    lanes = a.take<Lanes>(s.blocks);
    q_t = a.take<float>(lanes_all * s.pitch_qk);
    dout_t = a.take<float>(lanes_all * s.pitch_v);
    q = a.take<float>(lanes_all * s.pitch_qk);
    dout = a.take<float>(lanes_all * s.pitch_v);
    lse = a.take<float>(lanes_all);
    delta = a.take<float>(lanes_all);
    dq_t = a.take<float>(lanes_all * s.head_dim);
    dk = a.take<float>(s.split_keys * s.pitch_qk);
    dv = a.take<float>(s.split_keys * s.pitch_v);
    k_tile = a.take<float>(s.tile_n * s.pitch_qk);
    v_tile = a.take<float>(s.tile_n * s.pitch_v);
    p = a.take<float>(tile);
    ds = a.take<float>(tile);
    add = a.take<float>(tile);
    slope = a.take<float>(tile);
    keep = a.take<float>(tile);
    k_clear = a.take<float>(s.tile_n * s.pitch_qk);
    bias_sum = a.take<float>(tile);
    row = a.take<float>(std::max(s.pitch_qk, s.pitch_v));
    segments = a.take<int32_t>(s.tile_n);
    state = a.take<BlockState>(s.blocks);
  }
};

// Bytes of one worker's scratch, rounded so that workers do not share a cache line.
inline int64_t worker_bytes(const BackwardSizes& sizes) {
  Arena counting;
  BackwardScratch scratch(counting, sizes);
  return multiple_of(256, counting.used());
}

inline int64_t backward_scratch_bytes(const BackwardSizes& sizes) {
  Arena counting;
  BackwardShared shared(counting, sizes);
  return multiple_of(256, counting.used()) + worker_bytes(sizes) * sizes.workers;
}

// Key chunks a head is split into: enough tasks for the device's cores, never fewer than 512 keys each. Fixed
// by problem and device, so the bits do not depend on the threads of a call.
inline int backward_splits(int64_t batch, int64_t heads_kv, int64_t seqlen_kv, int cores) {
  const int64_t tasks = std::max<int64_t>(batch * heads_kv, 1);
  const int64_t wanted = (4 * static_cast<int64_t>(cores) + tasks - 1) / tasks;
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, seqlen_kv / 512), 1, 16));
}

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_BACKWARD_H_
