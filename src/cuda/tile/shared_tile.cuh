// A tile of 16-bit elements in shared memory as the copy engine leaves it and wgmma reads it: panels of 64
// columns, each kRows x 128 bytes, 16-byte chunks swizzled by the row (128-byte swizzle: address bits 4-6 are
// xor'ed with bits 7-9, so a tile must begin at a multiple of 1024 bytes).
#ifndef TILEWISE_CUDA_TILE_SHARED_TILE_H_
#define TILEWISE_CUDA_TILE_SHARED_TILE_H_

#include "cuda/ptx/shared.cuh"

namespace tilewise::tile {

constexpr int kPanelColumns = 64;
constexpr int kSwizzleAlignment = 1024;

template <int kRows, int kColumns>
struct SharedTile {
  static_assert(kRows % 8 == 0);
  static constexpr int kPanels = (kColumns + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kPanelBytes = kRows * 128;
  static constexpr int kBytes = kPanels * kPanelBytes;

  // wgmma descriptors: start, leading and stride offsets in units of 16 bytes, swizzle 1 = 128 bytes. Only
  // the low half differs between tiles. k innermost: 8 rows are 1024 bytes; the leading offset is not used.
  static __device__ __forceinline__ uint32_t k_major(const void* s_tile) { return low_half(s_tile, 16); }
  // n innermost: the next 64 columns are a panel further, the next 8 k rows 1024 bytes.
  static __device__ __forceinline__ uint32_t mn_major(const void* s_tile) {
    return low_half(s_tile, kPanelBytes);
  }
  // What is added for the next 16 of k.
  static constexpr uint32_t k_major_step(int k16) { return (k16 / 4 * kPanelBytes + k16 % 4 * 32) >> 4; }
  static constexpr uint32_t mn_major_step(int k16) { return k16 * 16 * 128 >> 4; }

  // 16-byte chunk `chunk` of a row, in bytes from the tile's start.
  static __device__ __forceinline__ int chunk_offset(int row, int chunk) {
    return chunk / 8 * kPanelBytes + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
  }

 private:
  static __device__ __forceinline__ uint32_t low_half(const void* s_tile, int leading_bytes) {
    return (ptx::shared_address(s_tile) & 0x3FFFF) >> 4 | static_cast<uint32_t>(leading_bytes >> 4) << 16;
  }
};

__device__ __forceinline__ uint64_t descriptor(uint32_t low_half) {
  constexpr uint32_t kHighHalf = 1024 >> 4 | 1u << 30;
  return static_cast<uint64_t>(kHighHalf) << 32 | low_half;
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_SHARED_TILE_H_
