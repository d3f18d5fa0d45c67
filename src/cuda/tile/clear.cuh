// Zeroing rows of a tile in shared memory whose weights are 0 for everyone: 0 * NaN is not 0.
#ifndef TILEWISE_CUDA_TILE_CLEAR_H_
#define TILEWISE_CUDA_TILE_CLEAR_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::tile {

// Rows outside [first, last), by a warpgroup, for products by wgmma behind the named barrier. Where several
// warpgroups clear a tile, each for itself, the later ones write zeros over zeros.
template <int kRows, int kColumns>
__device__ __forceinline__ void clear_outside(uint8_t* s_tile, int first, int last, int barrier) {
  using Tile = SharedTile<kRows, kColumns>;
  constexpr int kChunks = Tile::kPanels * 8;
#pragma unroll 1
  for (int i = ptx::thread_afresh() % 128; i < kRows * kChunks; i += 128) {
    const int row = i / kChunks;
    if (row < first || row >= last)
      *reinterpret_cast<uint4*>(s_tile + Tile::chunk_offset(row, i % kChunks)) = uint4{};
  }
  ptx::fence_async_shared();
  ptx::barrier_sync(barrier, 128);
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_CLEAR_H_
