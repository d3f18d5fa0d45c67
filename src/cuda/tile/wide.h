// Where rows of a tensor can be moved 16 bytes at a time.
#ifndef TILEWISE_CUDA_TILE_WIDE_H_
#define TILEWISE_CUDA_TILE_WIDE_H_

#include <cstdint>

#include "core/params.h"

namespace tilewise::tile {

inline bool is_wide(const RowTensor& t) {
  const int64_t step = t.dtype == DType::f32 ? 4 : 8;
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.batch_stride % step == 0 &&
         t.row_stride % step == 0 && t.head_stride % step == 0;
}

// 16-bit rows of `dim` elements that store_wide (store.cuh) can write.
inline bool stores_wide(const RowTensor& t, int64_t dim) {
  return t.dtype != DType::f32 && is_wide(t) && dim % 8 == 0;
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_WIDE_H_
