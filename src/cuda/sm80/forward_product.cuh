// The two products of attention for one warp and its fragments of 16 queries: a word of K or V that was read
// from shared memory serves all of them.
#ifndef TILEWISE_CUDA_SM80_FORWARD_PRODUCT_H_
#define TILEWISE_CUDA_SM80_FORWARD_PRODUCT_H_

#include "cuda/ptx/math.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm80 {

// Where a lane finds its row of a 16 x 16 block: the panel's 16-byte chunk `2 i + half` of row `row`, which
// is `at(i)` relative to the tile. Only bits 5 and 6 depend on i: tiles begin at multiples of 1024 bytes.
struct LaneAddress {
  uint32_t base;

  __device__ __forceinline__ LaneAddress(const uint8_t* s_tile, int row, int half)
      : base(ptx::shared_address(s_tile) + row * 128 + ((half ^ (row % 8)) << 4)) {}
  template <typename Tile>
  __device__ __forceinline__ uint32_t at(int i) const {
    return (base ^ (i % 4 << 5)) + i / 4 * Tile::kPanelBytes;
  }
};

// S[f] = Q[f] K^T. q: of the lane in the warp's first 16 rows.
template <typename C>
__device__ __forceinline__ void scores(float (&r_s)[C::kFragments][C::kTileN / 2], LaneAddress q,
                                       LaneAddress k) {
  using T = typename C::Element;
#pragma unroll
  for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
    for (int i = 0; i < C::kTileN / 2; ++i) r_s[f][i] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < C::kDim / 16; ++step) {
    uint32_t a[C::kFragments][4];
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
      ptx::ldmatrix_x4(a[f], q.at<typename C::QTile>(step) + f * 16 * 128);
#pragma unroll
    for (int n = 0; n < C::kTileN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, k.at<typename C::KTile>(step) + n * 16 * 128);
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
        ptx::mma_16x8x16<T>(&r_s[f][8 * n], a[f], b[0], b[1]);
        ptx::mma_16x8x16<T>(&r_s[f][8 * n + 4], a[f], b[2], b[3]);
      }
    }
  }
}

// O[f] += P[f] V, weights rounded on the way.
template <typename C>
__device__ __forceinline__ void values(float (&r_o)[C::kFragments][C::kDimV / 2],
                                       const float (&r_p)[C::kFragments][C::kTileN / 2], LaneAddress v) {
  using T = typename C::Element;
#pragma unroll
  for (int step = 0; step < C::kTileN / 16; ++step) {
    uint32_t a[C::kFragments][4];
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[f][i] = ptx::pack<T>(r_p[f][8 * step + 2 * i], r_p[f][8 * step + 2 * i + 1]);
    }
#pragma unroll
    for (int n = 0; n < C::kDimV / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_transposed(b, v.at<typename C::VTile>(n) + step * 16 * 128);
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
        ptx::mma_16x8x16<T>(&r_o[f][8 * n], a[f], b[0], b[1]);
        ptx::mma_16x8x16<T>(&r_o[f][8 * n + 4], a[f], b[2], b[3]);
      }
    }
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_PRODUCT_H_
