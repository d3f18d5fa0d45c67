// The order in which work is handed out: heads in groups whose keys and values fit the L2 together, within a
// group the same query tile of every head, and where tiles differ in length the longest first.
#ifndef TILEWISE_CUDA_TILE_ORDER_H_
#define TILEWISE_CUDA_TILE_ORDER_H_

#include <cstdint>

#include "core/hd.h"

namespace tilewise::tile {

struct Order {
  int32_t tiles_m = 0;     // query tiles of a head
  int32_t heads = 0;       // of one sequence
  int32_t all_heads = 0;   // of the whole batch
  int32_t group = 1;       // heads walked together
  int32_t last_first = 0;  // 1: from the last query tile to the first
  int32_t total = 0;

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

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_ORDER_H_
