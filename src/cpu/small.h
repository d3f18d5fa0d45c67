// Sizes and scratch layout of the `small` kernels, forward and backward: one definition for counting and for
// running.
#ifndef TILEWISE_CPU_SMALL_H_
#define TILEWISE_CPU_SMALL_H_

#include <algorithm>
#include <cstdint>

#include "core/arena.h"
#include "core/kernel.h"
#include "cpu/forward.h"

namespace tilewise::cpu {

constexpr int kSmallRows = 192, kSmallKeys = 192;  // largest tile_m and tile_n of a line with form small
constexpr int kSmallStrip =
    16;  // lanes whose scores are made for the same keys, in multiples of so many keys

// A task is a (sequence, key head) with all its rows of q and all its keys, or several such heads, where
// their rows are few.
struct SmallSizes {
  // Up to so many rows a head, scores are sums across vectors of one row each; beyond, a transpose of q pays.
  static constexpr int64_t kDotRows = 10;
  static constexpr int64_t kSharedLanes = 16;  // that the heads of a task fill where there are few rows

  int workers;
  int64_t rows;   // of a key head: queries times query heads
  int64_t keys;   // of a sequence
  int64_t heads;  // key heads a task
  int64_t tasks;  // of a sequence
  int64_t lanes;
  int64_t pitch_qk, pitch_v;  // of rows as fp32: whole widest vectors, any instruction set

  SmallSizes(int64_t heads_q, int64_t heads_kv, int64_t seqlen_q, int64_t seqlen_kv, int64_t head_dim,
             int64_t head_dim_v, const Schedule& schedule)
      : workers(schedule.threads),
        rows(std::max<int64_t>(seqlen_q * (heads_q / std::max<int64_t>(heads_kv, 1)), 1)),
        keys(std::max<int64_t>(seqlen_kv, 1)),
        pitch_qk(multiple_of(16, head_dim)),
        pitch_v(multiple_of(16, head_dim_v)) {
    share(heads_kv, dots() ? std::clamp<int64_t>(kSharedLanes / rows, 1, std::max<int64_t>(heads_kv, 1)) : 1);
  }
  bool dots() const { return rows <= kDotRows; }
  // No step mixes the heads of a task, so their number changes no bit.
  void share(int64_t heads_kv, int64_t heads_of_task) {
    heads = heads_of_task;
    tasks = (heads_kv + heads - 1) / heads;
    lanes = multiple_of(16, heads * rows);
  }
};

// One worker's.
struct SmallScratch {
  float *s, *ds;        // [keys][lanes]: scores, then weights; dP, then dS (backward)
  float *q, *dout, *o;  // [lanes][pitch]: rows that are not read in place
  float *q_t, *dout_t;  // [pitch][lanes]
  float *k, *v;         // [heads][keys][pitch]: rows that are not read in place
  float* out;           // [lanes or keys][larger pitch]: rows that are not written in place

  SmallScratch(Arena& a, const SmallSizes& z, bool backward) {
    const int64_t both = backward ? 1 : 0;
    s = a.take<float>(z.keys * z.lanes);
    ds = a.take<float>(both * z.keys * z.lanes);
    q = a.take<float>(z.lanes * z.pitch_qk);
    dout = a.take<float>(both * z.lanes * z.pitch_v);
    o = a.take<float>(both * z.lanes * z.pitch_v);
    q_t = a.take<float>(z.dots() ? 0 : z.lanes * z.pitch_qk);
    dout_t = a.take<float>(z.dots() ? 0 : both * z.lanes * z.pitch_v);
    k = a.take<float>(z.heads * z.keys * z.pitch_qk);
    v = a.take<float>(z.heads * z.keys * z.pitch_v);
    out = a.take<float>(std::max(z.lanes, z.keys) * std::max(z.pitch_qk, z.pitch_v));
  }
};

inline int64_t small_worker_bytes(const SmallSizes& sizes, bool backward) {
  Arena counting;
  SmallScratch scratch(counting, sizes, backward);
  return multiple_of(256, counting.used());
}

// A call with fewer rows than its plan would put more heads into a task: as many as the plan's scratch holds.
inline SmallSizes fitted(SmallSizes sizes, int64_t heads_kv, bool backward, int64_t scratch_bytes) {
  while (sizes.heads > 1 && small_worker_bytes(sizes, backward) * sizes.workers > scratch_bytes)
    sizes.share(heads_kv, sizes.heads - 1);
  return sizes;
}

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_SMALL_H_
