// The products of attention for one warpgroup. They only issue and commit; the caller waits.
#ifndef TILEWISE_CUDA_TILE_PRODUCT_H_
#define TILEWISE_CUDA_TILE_PRODUCT_H_

#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::tile {

// S[64, kN] = Q[64, kDim] K[kN, kDim]^T, low halves of the descriptors of k-major tiles; the 64 rows lie in a
// tile of kRows.
template <typename T, int kN, int kDim, int kRows = 64>
__device__ __forceinline__ void issue_scores(float (&r_s)[kN / 2], uint32_t q, uint32_t k) {
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i)
    ptx::Wgmma<kN, T>::ss(r_s, descriptor(q + SharedTile<kRows, kDim>::k_major_step(i)),
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

// dQ[64, kN] = dS[64, kKeys] K[kKeys, kN]: dS lies transposed, [kKeys, kQueries]; both mn-major.
template <typename T, int kN, int kKeys, int kQueries, int kDim>
__device__ __forceinline__ void issue_query_gradient(float (&r_dq)[kN / 2], uint32_t ds, uint32_t k) {
  static_assert(kN <= kPanelColumns, "one panel of K");
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i)
    ptx::Wgmma<kN, T>::tt(r_dq, descriptor(ds + SharedTile<kKeys, kQueries>::mn_major_step(i)),
                          descriptor(k + SharedTile<kKeys, kDim>::mn_major_step(i)), i != 0);
  ptx::wgmma_commit();
}

// The same of two tiles of keys.
template <typename T, int kN, int kKeys, int kQueries, int kDim>
__device__ __forceinline__ void issue_query_gradient(float (&r_dq)[kN / 2], const uint32_t (&ds)[2],
                                                     const uint32_t (&k)[2]) {
  static_assert(kN <= kPanelColumns, "one panel of K");
  constexpr int kSteps = kKeys / 16;  // of a tile
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 2 * kSteps; ++i)
    ptx::Wgmma<kN, T>::tt(
        r_dq, descriptor(ds[i / kSteps] + SharedTile<kKeys, kQueries>::mn_major_step(i % kSteps)),
        descriptor(k[i / kSteps] + SharedTile<kKeys, kDim>::mn_major_step(i % kSteps)), i != 0);
  ptx::wgmma_commit();
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_PRODUCT_H_
