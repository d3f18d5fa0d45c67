// Sizes and scratch of the standard three-step forward: the scores of one head in memory, one head a worker.
#ifndef TILEWISE_CPU_STANDARD_H_
#define TILEWISE_CPU_STANDARD_H_

#include <algorithm>
#include <cstdint>

#include "core/arena.h"
#include "core/kernel.h"
#include "cpu/forward.h"
#include "cpu/lanes.h"

namespace tilewise::cpu {

struct StandardSizes {
  int tile_m, tile_n, workers;
  int64_t seqlen_kv, head_dim, head_dim_v, blocks, pitch;

  StandardSizes(int64_t seqlen_q, int64_t seqlen_kv, int64_t head_dim, int64_t head_dim_v,
                const Schedule& schedule)
      : tile_m(schedule.tile_m),
        tile_n(schedule.tile_n),
        workers(schedule.threads),
        seqlen_kv(seqlen_kv),
        head_dim(head_dim),
        head_dim_v(head_dim_v),
        blocks((seqlen_q + tile_m - 1) / tile_m),
        pitch(multiple_of(16, std::max(head_dim, head_dim_v))) {}
};

// One worker's, for one (sequence, query head): blocks of tile_m queries, each block's matrices whole.
struct StandardScratch {
  Lanes* lanes;            // [blocks]
  float *q_t, *o_t;        // [blocks][dim][tile_m]
  float *top, *sum;        // [blocks][tile_m]
  float* scores;           // [blocks][seqlen_kv][tile_m]: S^T, then P^T
  float *k_rows, *v_rows;  // [seqlen_kv][pitch], where rows are not read in place
  float* rows;             // [tile_m][pitch]
  float* tile_top;         // [tile_m]
  float *add, *keep;       // [tile_n][tile_m]
  int32_t* segments;       // [tile_n]

  StandardScratch(Arena& a, const StandardSizes& s) {
    const int64_t all = s.blocks * s.tile_m, tile = static_cast<int64_t>(s.tile_n) * s.tile_m;
    lanes = a.take<Lanes>(s.blocks);
    q_t = a.take<float>(all * s.head_dim);
    o_t = a.take<float>(all * s.head_dim_v);
    top = a.take<float>(all);
    sum = a.take<float>(all);
    scores = a.take<float>(all * s.seqlen_kv);
    k_rows = a.take<float>(s.seqlen_kv * s.pitch);
    v_rows = a.take<float>(s.seqlen_kv * s.pitch);
    rows = a.take<float>(s.tile_m * s.pitch);
    tile_top = a.take<float>(s.tile_m);
    add = a.take<float>(tile);
    keep = a.take<float>(tile);
    segments = a.take<int32_t>(s.tile_n);
  }
};

inline int64_t standard_worker_bytes(const StandardSizes& sizes) {
  Arena counting;
  StandardScratch scratch(counting, sizes);
  return multiple_of(256, counting.used());
}

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_STANDARD_H_
