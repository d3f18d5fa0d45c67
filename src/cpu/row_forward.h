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

constexpr int kMaxRows = 16;     // largest tile_m of a line of kernels.def with form rows
constexpr int kMaxRowKeys = 64;  // and largest tile_n

// Keys of one partial result. They begin at multiples of it in every call, so that a row's bits follow from
// its own sequence: neither batch nor threads nor the pages say where its sums are cut.
constexpr int64_t kSplitKeys = 1024;

inline int64_t row_forward_chunks(int64_t seqlen_kv) {
  return std::max<int64_t>((seqlen_kv + kSplitKeys - 1) / kSplitKeys, 1);
}

struct RowForwardSizes {
  static constexpr int64_t kPitch = 32;  // two of the widest vectors

  int tile_m, tile_n, workers;
  int64_t tasks_per_head;              // of one (sequence, key head): tile_m rows of q each
  int64_t rows;                        // of q in a task, at most
  int64_t chunks;                      // partial results of a task; 1: it walks them all itself
  int64_t pitch_qk, pitch_v, pitch_s;  // of rows as fp32

  RowForwardSizes(int64_t heads_q, int64_t heads_kv, int64_t seqlen_q, int64_t seqlen_kv, int64_t head_dim,
                  int64_t head_dim_v, const Schedule& schedule)
      : tile_m(schedule.tile_m),
        tile_n(schedule.tile_n),
        workers(schedule.threads),
        chunks(schedule.num_splits > 1 ? row_forward_chunks(seqlen_kv) : 1),
        pitch_qk(multiple_of(kPitch, head_dim)),
        pitch_v(multiple_of(kPitch, head_dim_v)),
        pitch_s(multiple_of(kPitch, tile_n + 4)) {  // scores are written four at a time
    const int64_t all = seqlen_q * (heads_q / std::max<int64_t>(heads_kv, 1));
    tasks_per_head = std::max<int64_t>((all + tile_m - 1) / tile_m, 1);
    rows = std::clamp<int64_t>(all, 1, tile_m);
  }
};

// One worker's.
struct RowForwardScratch {
  float *q, *o, *part;     // [tile_m][pitch]: o over all keys, part over one chunk of them
  float *k_tile, *v_tile;  // [tile_n][pitch]: rows that are not read in place
  float* s;                // [tile_m][pitch_s]: scores, then weights
  float* add;              // [pitch_s]: bias and mask of one row
  float* row;              // [pitch_v]

  RowForwardScratch(Arena& a, const RowForwardSizes& sizes) {
    q = a.take<float>(sizes.tile_m * sizes.pitch_qk);
    o = a.take<float>(sizes.tile_m * sizes.pitch_v);
    part = a.take<float>(sizes.tile_m * sizes.pitch_v);
    k_tile = a.take<float>(sizes.tile_n * sizes.pitch_qk);
    v_tile = a.take<float>(sizes.tile_n * sizes.pitch_v);
    s = a.take<float>(sizes.tile_m * sizes.pitch_s);
    add = a.take<float>(sizes.pitch_s);
    row = a.take<float>(sizes.pitch_v);
  }
};

// What the tasks of one (sequence, key head, rows of q) leave for the merge.
struct RowForwardPartials {
  float *top, *sum;  // [task][chunk][rows]
  float* o;          // [task][chunk][rows][pitch_v]

  RowForwardPartials(Arena& a, const RowForwardSizes& sizes, int64_t tasks) {
    const int64_t all = sizes.chunks > 1 ? tasks * sizes.chunks * sizes.rows : 0;
    top = a.take<float>(all);
    sum = a.take<float>(all);
    o = a.take<float>(all * sizes.pitch_v);
  }
};

inline int64_t row_forward_worker_bytes(const RowForwardSizes& sizes) {
  Arena counting;
  RowForwardScratch scratch(counting, sizes);
  return multiple_of(256, counting.used());
}

inline int64_t row_forward_partial_bytes(const RowForwardSizes& sizes, int64_t tasks) {
  Arena counting;
  RowForwardPartials partials(counting, sizes, tasks);
  return counting.used();
}

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_ROW_FORWARD_H_
