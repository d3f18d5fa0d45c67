// A tile of rows from global memory into the swizzled panels of shared memory, by all threads of a block.
#ifndef TILEWISE_CUDA_SM80_FORWARD_LOAD_H_
#define TILEWISE_CUDA_SM80_FORWARD_LOAD_H_

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm80 {

// Rows [first, last) of the tile are read, their first `columns` elements; the rest of the tile is zero, so
// what no row sees is never a NaN. Eight lanes take the 128 bytes of a row in a panel. Wide: 16 bytes a copy,
// else 4.
template <typename T, int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_tile(uint8_t* s_tile, const T* g_tile, int64_t row_stride, int first,
                                          int last, int columns, bool wide) {
  using Tile = tile::SharedTile<kRows, kColumns>;
  constexpr int kStep = kThreads / 8;
  static_assert(kRows % kStep == 0 && kStep % 8 == 0 && sizeof(T) == 2);
  const int thread = ptx::thread_afresh(), row = thread / 8, chunk = thread % 8;
  const uint32_t s_to = ptx::shared_address(s_tile) + Tile::chunk_offset(row, chunk);
  const T* g_from = g_tile + row * row_stride + 8 * chunk;
  const auto of_row = static_cast<uint32_t>(row - first), rows = static_cast<uint32_t>(last - first);
  if (wide) {
#pragma unroll
    for (int r = 0; r < kRows; r += kStep) {
      const int inside = of_row + r < rows ? 16 : 0;
#pragma unroll
      for (int panel = 0; panel < Tile::kPanels; ++panel) {
        const int column = panel * tile::kPanelColumns + 8 * chunk;
        if ((panel + 1) * tile::kPanelColumns > kColumns && column >= kColumns) continue;
        ptx::cp_async_16(s_to + panel * Tile::kPanelBytes + r * 128, g_from + panel * tile::kPanelColumns,
                         min(max(2 * (columns - column), 0), inside));
      }
      g_from += kStep * row_stride;
    }
  } else {
#pragma unroll 1
    for (int r = 0; r < kRows; r += kStep) {
      const int inside = of_row + r < rows ? 4 : 0;
#pragma unroll 1
      for (int word = 0; word < Tile::kPanels * 4; ++word) {
        const int column = word / 4 * tile::kPanelColumns + 8 * chunk + word % 4 * 2;
        ptx::cp_async_4(s_to + word / 4 * Tile::kPanelBytes + r * 128 + word % 4 * 4,
                        g_from + word / 4 * tile::kPanelColumns + word % 4 * 2,
                        min(max(2 * (columns - column), 0), inside));
      }
      g_from += kStep * row_stride;
    }
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_LOAD_H_
