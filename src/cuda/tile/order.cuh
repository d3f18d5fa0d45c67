// The order in which work is handed out: heads in groups whose keys and values fit the L2 together, within a
// group the same query tile of every head, and where tiles differ in length the longest first.
#ifndef TILEWISE_CUDA_TILE_ORDER_H_
#define TILEWISE_CUDA_TILE_ORDER_H_

#include <algorithm>
#include <cstdint>

#include "core/hd.h"
#include "core/params.h"

namespace tilewise::tile {

constexpr int64_t kL2Share = int64_t{32} << 20;  // bytes that the heads walked together may read

struct Order {
  int32_t tiles_m = 0;     // query tiles of a head
  int32_t heads = 0;       // of one sequence
  int32_t all_heads = 0;   // of the whole batch
  int32_t group = 1;       // heads walked together
  int32_t last_first = 0;  // 1: from the last query tile to the first
  int32_t total = 0;

  Order() = default;
  Order(int64_t tiles, int64_t heads_of_one, int64_t batch)
      : tiles_m(static_cast<int32_t>(tiles)),
        heads(static_cast<int32_t>(heads_of_one)),
        all_heads(static_cast<int32_t>(batch * heads_of_one)),
        total(tiles_m * all_heads) {}

  // As many heads as the L2 holds what they read, `sharing` of which read the same.
  void walk_together(int64_t head_bytes, int64_t sharing) {
    const int64_t together = std::max<int64_t>(1, kL2Share / std::max<int64_t>(1, head_bytes)) * sharing;
    group = static_cast<int32_t>(std::min<int64_t>(together, std::max(1, all_heads)));
  }

  TILEWISE_HD void find(int32_t index, int32_t& batch, int32_t& head, int32_t& tile_row) const {
    const int32_t in_group = group * tiles_m;
    const int32_t first = index / in_group * group;
    const int32_t here = all_heads - first < group ? all_heads - first : group;
    const int32_t rest = index % in_group;
    tile_row = rest / here;
    if (last_first) tile_row = tiles_m - 1 - tile_row;
    const int32_t at = first + rest % here;
    batch = at / heads;
    head = at % heads;
  }
};

inline Order order_of(const ForwardParams& p, int tile_m) {
  Order order((p.seqlen_q + tile_m - 1) / tile_m, p.heads_q, p.batch);
  order.last_first = p.window_right >= 0 && p.window_left < 0;
  if (order.last_first) order.walk_together(p.seqlen_kv * (p.head_dim + p.head_dim_v) * 2, p.group());
  return order;
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_ORDER_H_
