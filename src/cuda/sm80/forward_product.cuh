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

// R[f] = A[f] B^T over kSteps times 16 columns. a: of the lane in the warp's first 16 rows; b: in the first
// of kN rows.
template <typename T, int kN, int kSteps, typename ATile, typename BTile, int kFragments>
__device__ __forceinline__ void row_products(float (&r)[kFragments][kN / 2], LaneAddress a, LaneAddress b) {
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) r[f][i] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t of_a[kFragments][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) ptx::ldmatrix_x4(of_a[f], a.at<ATile>(step) + f * 16 * 128);
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t of_b[4];
      ptx::ldmatrix_x4(of_b, b.at<BTile>(step) + n * 16 * 128);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        ptx::mma_16x8x16<T>(&r[f][8 * n], of_a[f], of_b[0], of_b[1]);
        ptx::mma_16x8x16<T>(&r[f][8 * n + 4], of_a[f], of_b[2], of_b[3]);
      }
    }
  }
}

// R[f] += A[f] B, one step of 16 rows of B: the fragments of A and the lane's address in those rows.
template <typename T, typename BTile, int kFragments, int kCount>
__device__ __forceinline__ void add_rows(float (&r)[kFragments][kCount], const uint32_t (&a)[kFragments][4],
                                         LaneAddress b, int step) {
#pragma unroll
  for (int n = 0; n < kCount / 8; ++n) {
    uint32_t of_b[4];
    ptx::ldmatrix_x4_transposed(of_b, b.at<BTile>(n) + step * 16 * 128);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      ptx::mma_16x8x16<T>(&r[f][8 * n], a[f], of_b[0], of_b[1]);
      ptx::mma_16x8x16<T>(&r[f][8 * n + 4], a[f], of_b[2], of_b[3]);
    }
  }
}

// R[f] += A[f] B: accumulators of one product, rounded on the way, are A of the next.
template <typename T, typename BTile, int kFragments, int kCount, int kInner>
__device__ __forceinline__ void add_rounded(float (&r)[kFragments][kCount],
                                            const float (&a)[kFragments][kInner], LaneAddress b) {
#pragma unroll
  for (int step = 0; step < kInner / 8; ++step) {
    uint32_t rounded[kFragments][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rounded[f][i] = ptx::pack<T>(a[f][8 * step + 2 * i], a[f][8 * step + 2 * i + 1]);
    }
    add_rows<T, BTile>(r, rounded, b, step);
  }
}

// S[f] = Q[f] K^T. q: of the lane in the warp's first 16 rows.
template <typename C>
__device__ __forceinline__ void scores(float (&r_s)[C::kFragments][C::kTileN / 2], LaneAddress q,
                                       LaneAddress k) {
  row_products<typename C::Element, C::kTileN, C::kDim / 16, typename C::QTile, typename C::KTile>(r_s, q, k);
}

// O[f] += P[f] V.
template <typename C>
__device__ __forceinline__ void values(float (&r_o)[C::kFragments][C::kDimV / 2],
                                       const float (&r_p)[C::kFragments][C::kTileN / 2], LaneAddress v) {
  add_rounded<typename C::Element, typename C::VTile>(r_o, r_p, v);
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_PRODUCT_H_
