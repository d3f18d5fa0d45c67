// The two products of fp32 attention by wgmma, on operands in two parts (sm80/forward_f32_parts.cuh,
// Low::plain): all of lo hi + hi lo first, then hi hi, into one accumulator, so that the small products lose
// nothing to the large ones. What is left out is lo lo, 2^-22 of a term at most.
#ifndef TILEWISE_CUDA_SM90_F32_PRODUCT_H_
#define TILEWISE_CUDA_SM90_F32_PRODUCT_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

// A block is one warpgroup.
struct WarpgroupProducts {
  static constexpr int kPart = 64;  // columns of a gradient whose tile sums are in registers at a time

  template <int kPending>
  static __device__ __forceinline__ void wait() {
    ptx::wgmma_wait<kPending>();
  }
  template <int kCount>
  static __device__ __forceinline__ void pin(float (&r)[kCount]) {
    ptx::pin(r);
  }
  // Between a copy's end and the barrier behind it: wgmma reads by another way than cp.async writes.
  static __device__ __forceinline__ void fence_copies() { ptx::fence_async_shared(); }

  // R = A B^T: the 64 rows of A, all rows of B. Issues and commits.
  template <int kColumns, typename ATile, typename BTile, int kCount>
  static __device__ __forceinline__ void issue_scores(float (&r)[kCount],
                                                      const uint8_t (&s_a)[2][ATile::kBytes],
                                                      const uint8_t (&s_b)[2][BTile::kBytes]) {
    const uint32_t a[2] = {ATile::k_major(s_a[0]), ATile::k_major(s_a[1])};
    const uint32_t b[2] = {BTile::k_major(s_b[0]), BTile::k_major(s_b[1])};
    ptx::wgmma_fence();
#pragma unroll
    for (int term = 0; term < 3; ++term) {
#pragma unroll
      for (int i = 0; i < kColumns / 16; ++i)
        ptx::Wgmma<2 * kCount, __half>::ss(r, tile::descriptor(a[term == 0] + ATile::k_major_step(i)),
                                           tile::descriptor(b[term == 1] + BTile::k_major_step(i)),
                                           term + i != 0);
    }
    ptx::wgmma_commit();
  }

  // R = A B, kPart columns of B from `part` * kPart on; A in registers. Issues and commits.
  template <typename BTile, int kWords>
  static __device__ __forceinline__ void issue_values(float (&r)[kPart / 2], const uint32_t (&a_hi)[kWords],
                                                      const uint32_t (&a_lo)[kWords],
                                                      const uint8_t (&s_b)[2][BTile::kBytes], int part) {
    static_assert(kPart == tile::kPanelColumns);
    const int at = part * BTile::kPanelBytes;
    const uint32_t b[2] = {BTile::mn_major(s_b[0] + at), BTile::mn_major(s_b[1] + at)};
    ptx::wgmma_fence();
#pragma unroll
    for (int term = 0; term < 3; ++term) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i)
        ptx::Wgmma<kPart, __half>::rs(r, term == 0 ? a_lo + 4 * i : a_hi + 4 * i,
                                      tile::descriptor(b[term == 1] + BTile::mn_major_step(i)),
                                      term + i != 0);
    }
    ptx::wgmma_commit();
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_F32_PRODUCT_H_
