// Scores of one warp's 16 queries and 8 keys once more, where a wgmma accumulator is gone: queries from
// shared memory, keys from where they lie, by mma.sync, so without the other warps of the group.
#ifndef TILEWISE_CUDA_TILE_SCORE_AGAIN_H_
#define TILEWISE_CUDA_TILE_SCORE_AGAIN_H_

#include "core/params.h"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::tile {

// Raw scores, in the accumulator's layout, of the queries from `row` of s_q on and of the sequence's keys
// from `key` on; 0 for keys that do not exist.
template <typename T, int kDim>
__device__ __forceinline__ void score_again(float (&r_s)[4], const ForwardParams& p, const Work& w,
                                            int kv_head, const uint8_t* s_q, int row, int key, int lane) {
  const int own_key = key + lane / 4;
  const bool exists = own_key >= w.kv_first && own_key < w.kv_last;
  const uint16_t* g_k = row_of_tensor<uint16_t>(p.k, w.batch, w.kv_begin + own_key, kv_head);
  const auto pair = [&](int column) {
    const uint32_t low = exists && column < p.head_dim ? g_k[column] : 0;
    const uint32_t high = exists && column + 1 < p.head_dim ? g_k[column + 1] : 0;
    return high << 16 | low;
  };
#pragma unroll
  for (int c = 0; c < 4; ++c) r_s[c] = 0.0f;
#pragma unroll 1
  for (int k = 0; k < kDim; k += 16) {
    uint32_t a[4];
    const int at = row + lane % 8 + 8 * (lane / 8 % 2);
    ptx::ldmatrix_x4(a, ptx::shared_address(s_q + SharedTile<64, kDim>::chunk_offset(at, k / 8 + lane / 16)));
    const int column = k + 2 * (lane % 4);
    ptx::mma_16x8x16<T>(r_s, a, pair(column), pair(column + 8));
  }
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_SCORE_AGAIN_H_
