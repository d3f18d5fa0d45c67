// An order whose pieces are found by multiplications instead of divisions.
#ifndef TILEWISE_CUDA_TILE_FAST_ORDER_H_
#define TILEWISE_CUDA_TILE_FAST_ORDER_H_

#include <algorithm>

#include "cuda/tile/fast_divide.cuh"
#include "cuda/tile/order.cuh"

namespace tilewise::tile {

struct FastOrder : Order {
  FastDivide by_group, by_here, by_last, by_heads;  // of the last group there may be less
  int32_t last_group = 0;

  FastOrder() = default;
  explicit FastOrder(const Order& order)
      : Order(order), by_group(std::max(1, group * tiles_m)), by_here(group), by_heads(std::max(1, heads)) {
    if (all_heads > 0) last_group = (all_heads - 1) / group;
    by_last = FastDivide(std::max(1, all_heads - last_group * group));
  }

  TILEWISE_HD void find(int32_t index, int32_t& batch, int32_t& head, int32_t& tile_row) const {
    int32_t rest = index;
    const int32_t in = by_group.split(rest);
    tile_row = in == last_group ? by_last.split(rest) : by_here.split(rest);
    if (last_first) tile_row = tiles_m - 1 - tile_row;
    head = in * group + rest;
    batch = by_heads.split(head);
  }
};

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_FAST_ORDER_H_
