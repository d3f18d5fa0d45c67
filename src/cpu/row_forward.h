// Sizes and scratch layout of the forward with keys in the lanes: one definition for counting and for
// running.
#ifndef TILEWISE_CPU_ROW_FORWARD_H_
#define TILEWISE_CPU_ROW_FORWARD_H_

#include <algorithm>
#include <cstdint>

#include "core/arena.h"
#include "core/kernel.h"
#include "core/mask.h"
#include "core/softmax.h"
#include "cpu/forward.h"
#include "cpu/lanes.h"

namespace tilewise::cpu {

constexpr int kMaxRows = 16;     // largest tile_m of a line of kernels.def with form rows
constexpr int kMaxRowKeys = 64;  // and largest tile_n

// Keys of one partial result. They begin at multiples of it in every call, so that a row's bits follow from
// its own sequence: neither batch nor threads nor the pages say where its sums are cut.
constexpr int64_t kSplitKeys = 1024;

inline int64_t row_forward_chunks(int64_t seqlen_kv) {
  return std::max<int64_t>((seqlen_kv + kSplitKeys - 1) / kSplitKeys, 1);
}

// Of the keys that a row has seen so far, in the scores' own units.
struct RowState {
  float top = kNegativeInfinity, sum = 0.0f;

  bool empty() const { return saw_nothing(top, sum); }
};

struct RowOfTask {
  int64_t query, head;
  Interval keys;
  RowPlace place;
  RowState all;
};

// A task is a (sequence, some key heads, up to tile_m rows of q of each[, chunk of keys]). Heads that lie
// side by side in a row of k are walked together, tile by tile: so a tile is read in the order of memory.
struct RowForwardSizes {
  static constexpr int64_t kPitch = 32;         // two of the widest vectors
  static constexpr int64_t kMostHeads = 16;     // of a task
  static constexpr int64_t kMostTaskRows = 64;  // rows of q of all its heads: they stay near beside the tiles

  int tile_m, tile_n, workers;
  int64_t parts;                       // of the rows of q of one (sequence, key head): tasks
  int64_t rows;                        // of q of one key head in a task, at most
  int64_t task_rows;                   // of all its key heads, at most
  int64_t chunks;                      // of keys with a task of their own; 1: a task walks them all
  int64_t pitch_qk, pitch_v, pitch_s;  // of rows as fp32

  RowForwardSizes(int64_t heads_q, int64_t heads_kv, int64_t seqlen_q, int64_t seqlen_kv, int64_t head_dim,
                  int64_t head_dim_v, const Schedule& schedule)
      : tile_m(schedule.tile_m),
        tile_n(schedule.tile_n),
        workers(schedule.threads),
        task_rows(std::clamp<int64_t>(heads_kv * tile_m, tile_m, kMostTaskRows)),
        chunks(schedule.num_splits > 1 ? row_forward_chunks(seqlen_kv) : 1),
        pitch_qk(multiple_of(kPitch, head_dim)),
        pitch_v(multiple_of(kPitch, head_dim_v)),
        pitch_s(multiple_of(kPitch, tile_n + 4)) {  // scores are written four at a time
    const int64_t all = seqlen_q * (heads_q / std::max<int64_t>(heads_kv, 1));
    parts = std::max<int64_t>((all + tile_m - 1) / tile_m, 1);
    rows = std::clamp<int64_t>(all, 1, tile_m);
  }
  // Key heads of a task, where a row of k and v takes row_bytes for each: what keeps a tile of them in half
  // of a small L2, and leaves every worker something to do.
  int64_t heads(int64_t batch, int64_t heads_kv, int64_t row_bytes) const {
    constexpr int64_t kTileBytes = 256 << 10;
    int64_t most = std::min({heads_kv, kMostHeads, task_rows / rows, kTileBytes / (tile_n * row_bytes)});
    most = std::max<int64_t>(most, 1);
    if (workers == 1) return most;
    while (most > 1 && batch * ((heads_kv + most - 1) / most) * parts * chunks < 2 * int64_t{workers})
      most = (most + 1) / 2;
    return most;
  }
};

// One worker's.
struct RowForwardScratch {
  float *q, *o, *part;     // [task_rows][pitch]: o over all keys, part over one chunk of them
  float *k_tile, *v_tile;  // [tile_n][pitch]: rows that are not read in place
  float* s;                // [tile_m][pitch_s]: scores of one key head, then weights
  float* add;              // [pitch_s]: bias and mask of one row
  float* row;              // [pitch_v]
  RowOfTask* rows;         // [task_rows]
  RowState* states;        // [task_rows]: of one chunk

  RowForwardScratch(Arena& a, const RowForwardSizes& sizes) {
    q = a.take<float>(sizes.task_rows * sizes.pitch_qk);
    o = a.take<float>(sizes.task_rows * sizes.pitch_v);
    part = a.take<float>(sizes.task_rows * sizes.pitch_v);
    k_tile = a.take<float>(sizes.tile_n * sizes.pitch_qk);
    v_tile = a.take<float>(sizes.tile_n * sizes.pitch_v);
    s = a.take<float>(sizes.tile_m * sizes.pitch_s);
    add = a.take<float>(sizes.pitch_s);
    row = a.take<float>(sizes.pitch_v);
    rows = a.take<RowOfTask>(sizes.task_rows);
    states = a.take<RowState>(sizes.task_rows);
  }
};

// What the tasks leave for the merge, for each (sequence, key head) of which there are `heads`.
struct RowForwardPartials {
  float *top, *sum;  // [head][part of the rows][chunk][rows]
  float* o;          // [head][part of the rows][chunk][rows][pitch_v]

  RowForwardPartials(Arena& a, const RowForwardSizes& sizes, int64_t heads) {
    const int64_t all = sizes.chunks > 1 ? heads * sizes.parts * sizes.chunks * sizes.rows : 0;
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

inline int64_t row_forward_partial_bytes(const RowForwardSizes& sizes, int64_t heads) {
  Arena counting;
  RowForwardPartials partials(counting, sizes, heads);
  return counting.used();
}

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_ROW_FORWARD_H_
