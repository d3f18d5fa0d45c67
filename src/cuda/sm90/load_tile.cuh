// One tile by the copy engine, a box a panel.
#ifndef TILEWISE_CUDA_SM90_LOAD_TILE_H_
#define TILEWISE_CUDA_SM90_LOAD_TILE_H_

#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

template <typename Tile>
__device__ __forceinline__ void load_tile(uint8_t* s_to, const TileSource& from, ptx::Mbarrier* full,
                                          ptx::CacheHint hint, int row, int head, int batch) {
  ptx::mbarrier_arrive_expect(full, Tile::kBytes);
#pragma unroll
  for (int panel = 0; panel < Tile::kPanels; ++panel)
    ptx::tma_load(s_to + panel * Tile::kPanelBytes, &from.map, full, hint, panel * tile::kPanelColumns, row,
                  head * from.head_step, batch * from.batch_step);
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_LOAD_TILE_H_
