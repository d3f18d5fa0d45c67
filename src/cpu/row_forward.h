// Sizes and scratch layout of the forward with keys in the lanes: one definition for counting and for
// running.
#ifndef TILEWISE_CPU_ROW_FORWARD_H_
#define TILEWISE_CPU_ROW_FORWARD_H_

#include <algorithm>
#include <cstdint>

#include "core/arena.h"
#include "core/kernel.h"
#include "cpu/forward.h"

namespace tilewise::cpu {

constexpr int kMaxRows = 16;  // largest tile_m of a line of kernels.def with form rows

struct RowForwardSizes {
  int tile_m, tile_n, workers;
  int64_t tasks_per_head;              // of one (sequence, key head): tile_m rows of q each
  int64_t pitch_qk, pitch_v, pitch_s;  // of rows as fp32: whole widest vectors, any instruction set

  RowForwardSizes(int64_t heads_q, int64_t heads_kv, int64_t seqlen_q, int64_t head_dim, int64_t head_dim_v,
                  const Schedule& schedule)
      : tile_m(schedule.tile_m),
        tile_n(schedule.tile_n),
        workers(schedule.threads),
        pitch_qk(multiple_of(16, head_dim)),
        pitch_v(multiple_of(16, head_dim_v)),
        pitch_s(multiple_of(16, tile_n)) {
    const int64_t rows = seqlen_q * (heads_q / std::max<int64_t>(heads_kv, 1));
    tasks_per_head = std::max<int64_t>((rows + tile_m - 1) / tile_m, 1);
  }
};

// One worker's.
struct RowForwardScratch {
  float *q, *o;            // [tile_m][pitch]
  float *k_tile, *v_tile;  // [tile_n][pitch]: rows that are not read in place
  float* s;                // [tile_m][pitch_s]: scores, then weights

  RowForwardScratch(Arena& a, const RowForwardSizes& sizes) {
    q = a.take<float>(sizes.tile_m * sizes.pitch_qk);
    o = a.take<float>(sizes.tile_m * sizes.pitch_v);
    k_tile = a.take<float>(sizes.tile_n * sizes.pitch_qk);
    v_tile = a.take<float>(sizes.tile_n * sizes.pitch_v);
    s = a.take<float>(sizes.tile_m * sizes.pitch_s);
  }
};

inline int64_t row_forward_worker_bytes(const RowForwardSizes& sizes) {
  Arena counting;
  RowForwardScratch scratch(counting, sizes);
  return multiple_of(256, counting.used());
}

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_ROW_FORWARD_H_
