// The two products of attention for one warpgroup. Both only issue and commit; the caller waits.
#ifndef TILEWISE_CUDA_TILE_PRODUCT_H_
#define TILEWISE_CUDA_TILE_PRODUCT_H_

#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::tile {

// S[64, kN] = Q[64, kDim] K[kN, kDim]^T, low halves of the descriptors of k-major tiles.
template <typename T, int kN, int kDim>
__device__ __forceinline__ void issue_scores(float (&r_s)[kN / 2], uint32_t q, uint32_t k) {
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i)
    ptx::Wgmma<kN, T>::ss(r_s, descriptor(q + SharedTile<64, kDim>::k_major_step(i)),
                          descriptor(k + SharedTile<kN, kDim>::k_major_step(i)), i != 0);
  ptx::wgmma_commit();
}

// O[64, kDim] += P[64, kN] V[kN, kDim], P rounded in registers, low half of the descriptor of an mn-major
// tile.
template <typename T, int kN, int kDim>
__device__ __forceinline__ void issue_values(float (&r_o)[kDim / 2], const uint32_t (&r_p)[kN / 4],
                                             uint32_t v, bool add) {
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kN / 16; ++i)
    ptx::Wgmma<kDim, T>::rs(r_o, r_p + 4 * i, descriptor(v + SharedTile<kN, kDim>::mn_major_step(i)),
                            i != 0 || add);
  ptx::wgmma_commit();
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_PRODUCT_H_
