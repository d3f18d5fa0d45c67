// Sizes and scratch layout of the CPU forward: one definition for counting and for running.
#ifndef TILEWISE_CPU_FORWARD_H_
#define TILEWISE_CPU_FORWARD_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/arena.h"
#include "core/kernel.h"
#include "cpu/lanes.h"

namespace tilewise::cpu {

constexpr int64_t multiple_of(int64_t unit, int64_t value) { return (value + unit - 1) / unit * unit; }

// A task is a (sequence, key head) and up to `blocks` q blocks of tile_m lanes, which walk the keys together:
// a tile of K and V is converted, and brought near, once for all of them. Where workers share the work, as
// many of the last tasks as there are workers are cut into shorter ones: nobody waits long for the last.
struct ForwardSizes {
  static constexpr int64_t kMostBlocks = 16;

  int tile_m, tile_n, workers;
  int blocks;              // q blocks a task
  int blocks_of_last;      // and a task of those that come last
  int64_t heads;           // (sequence, key head)
  int64_t tasks_per_head;  // of one (sequence, key head), before the last are cut
  int64_t whole;           // tasks that are not cut
  int64_t tasks;
  int64_t head_dim, head_dim_v;
  int64_t pitch_qk, pitch_v;  // of rows as fp32

  ForwardSizes(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seqlen_q, int64_t head_dim,
               int64_t head_dim_v, const Schedule& schedule)
      : tile_m(schedule.tile_m),
        tile_n(schedule.tile_n),
        workers(schedule.threads),
        head_dim(head_dim),
        head_dim_v(head_dim_v),
        pitch_qk(multiple_of(16, head_dim)),
        pitch_v(multiple_of(16, head_dim_v)) {
    constexpr int64_t kMostBytes = 512 << 10;  // Q^T and O^T of a task stay in L2
    const int64_t lanes = seqlen_q * (heads_q / std::max<int64_t>(heads_kv, 1));
    const int64_t all = std::max<int64_t>((lanes + tile_m - 1) / tile_m, 1);
    heads = batch * heads_kv;
    const int64_t most =
        std::clamp<int64_t>(kMostBytes / (4 * tile_m * (head_dim + head_dim_v)), 1, kMostBlocks);
    int64_t count = std::min(most, all);
    while (count > 1 && heads * ((all + count - 1) / count) < 4 * static_cast<int64_t>(workers)) --count;
    tasks_per_head = (all + count - 1) / count;
    blocks = static_cast<int>((all + tasks_per_head - 1) / tasks_per_head);
    blocks_of_last = (blocks + 3) / 4;
    const int64_t cut = workers > 1 ? std::min<int64_t>(workers, heads * tasks_per_head) : 0;
    whole = heads * tasks_per_head - cut;
    tasks = whole + cut * cuts();
  }

  int cuts() const { return (blocks + blocks_of_last - 1) / blocks_of_last; }

  struct Task {
    int64_t head, first;  // (sequence, key head); its first q block
    int count;            // q blocks, of which the head may have fewer
  };
  // The last rows come first: under a causal mask they see the most keys. There, `longest_first`, this holds
  // for all heads together; else tasks of one head are neighbours, whose keys stay in the caches.
  Task task(int64_t index, bool longest_first) const {
    const int64_t at = index < whole ? index : whole + (index - whole) / cuts();
    const int64_t head = longest_first ? at % heads : at / tasks_per_head;
    const int64_t part = tasks_per_head - 1 - (longest_first ? at / heads : at % tasks_per_head);
    if (index < whole) return {head, part * blocks, blocks};
    const int from = (cuts() - 1 - static_cast<int>((index - whole) % cuts())) * blocks_of_last;
    return {head, part * blocks + from, std::min(blocks_of_last, blocks - from)};
  }
};

// One worker's.
struct ForwardScratch {
  Lanes* lanes;            // [blocks]
  float *q_t, *o_t;        // [blocks][pitch_qk][tile_m], [blocks][head_dim_v][tile_m]
  float *top, *sum;        // [blocks][tile_m]: running maximum, of raw products or natural scores, and sum
  float* s;                // [tile_n][tile_m]: S^T, then P^T
  float *k_tile, *v_tile;  // [tile_n][pitch]: rows that are not read in place
  float* rows;             // [tile_m][larger pitch]
  float *add, *keep;       // [tile_n][tile_m]: bias and mask; dropout
  float* tile_top;         // [tile_m]
  int32_t* segments;       // [tile_n]

  ForwardScratch(Arena& a, const ForwardSizes& s_) {
    const int64_t tile = static_cast<int64_t>(s_.tile_n) * s_.tile_m,
                  lanes_all = static_cast<int64_t>(s_.blocks) * s_.tile_m;
    lanes = a.take<Lanes>(s_.blocks);
    top = a.take<float>(lanes_all);
    sum = a.take<float>(lanes_all);
    tile_top = a.take<float>(s_.tile_m);
    segments = a.take<int32_t>(s_.tile_n);
    s = a.take<float>(tile);
    q_t = a.take<float>(lanes_all * s_.pitch_qk);
    o_t = a.take<float>(lanes_all * s_.head_dim_v);
    k_tile = a.take<float>(s_.tile_n * s_.pitch_qk);
    v_tile = a.take<float>(s_.tile_n * s_.pitch_v);
    rows = a.take<float>(s_.tile_m * std::max(s_.pitch_qk, s_.pitch_v));
    add = a.take<float>(tile);
    keep = a.take<float>(tile);
  }
};

inline int64_t forward_worker_bytes(const ForwardSizes& sizes) {
  Arena counting;
  ForwardScratch scratch(counting, sizes);
  return multiple_of(256, counting.used());
}

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_FORWARD_H_
