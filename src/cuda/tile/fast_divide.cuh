// Division by what a launch knows, of numbers below 2^31, as a multiplication.
#ifndef TILEWISE_CUDA_TILE_FAST_DIVIDE_H_
#define TILEWISE_CUDA_TILE_FAST_DIVIDE_H_

#include <cstdint>

#include "core/hd.h"

namespace tilewise::tile {

struct FastDivide {
  uint32_t divisor = 1, factor = 0, shift = 31;

  FastDivide() = default;
  explicit FastDivide(int64_t by) : divisor(static_cast<uint32_t>(by)) {
    while ((int64_t{1} << (shift - 31)) < by) ++shift;
    factor = static_cast<uint32_t>((uint64_t{1} << shift) / divisor + 1);
  }
  TILEWISE_HD int divide(int n) const {
    return static_cast<int>((static_cast<uint64_t>(static_cast<uint32_t>(n)) * factor) >> shift);
  }
  // Leaves the rest in n.
  TILEWISE_HD int split(int& n) const {
    const int quotient = divide(n);
    n -= quotient * static_cast<int>(divisor);
    return quotient;
  }
};

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_FAST_DIVIDE_H_
