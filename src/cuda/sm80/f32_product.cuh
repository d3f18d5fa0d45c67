// The two products of fp32 attention by mma.sync, on operands in two parts (forward_f32_parts.cuh,
// Low::plain): lo hi + hi lo + hi hi into one accumulator. What is lost is lo lo, 2^-22 of a term at most.
//
// The interface is that of sm90/f32_product.cuh, whose products are asynchronous; these are not.
#ifndef TILEWISE_CUDA_SM80_F32_PRODUCT_H_
#define TILEWISE_CUDA_SM80_F32_PRODUCT_H_

#include "cuda/ptx/registers.cuh"
#include "cuda/sm80/forward_product.cuh"

namespace tilewise::sm80 {

struct WarpProducts {
  static constexpr int kPart = 16;  // columns of a gradient whose tile sums are in registers at a time

  template <int kPending>
  static __device__ __forceinline__ void wait() {}
  // One product after another: side by side their sums would fill the registers.
  template <int kCount>
  static __device__ __forceinline__ void pin(float (&r)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i]));
  }
  // Between a copy's end and the barrier behind it.
  static __device__ __forceinline__ void fence_copies() {}

  // R = A B^T: 16 rows a warp of the 64 of A, all rows of B.
  template <int kColumns, typename ATile, typename BTile, int kCount>
  static __device__ __forceinline__ void issue_scores(float (&r)[kCount],
                                                      const uint8_t (&s_a)[2][ATile::kBytes],
                                                      const uint8_t (&s_b)[2][BTile::kBytes]) {
    const int thread = ptx::thread_afresh(), lane = thread % 32, half = lane / 16;
    const int a_row = thread / 32 * 16 + lane % 16, b_row = half * 8 + lane % 8;
    const LaneAddress of_a_hi(s_a[0], a_row, half), of_a_lo(s_a[1], a_row, half);
    const LaneAddress of_b_hi(s_b[0], b_row, lane / 8 % 2), of_b_lo(s_b[1], b_row, lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < kCount; ++i) r[i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
      uint32_t a_hi[4], a_lo[4];
      ptx::ldmatrix_x4(a_hi, of_a_hi.at<ATile>(step));
      ptx::ldmatrix_x4(a_lo, of_a_lo.at<ATile>(step));
#pragma unroll
      for (int n = 0; n < kCount / 8; ++n) {
        uint32_t b_hi[4], b_lo[4];
        ptx::ldmatrix_x4(b_hi, of_b_hi.at<BTile>(step) + n * 16 * 128);
        ptx::ldmatrix_x4(b_lo, of_b_lo.at<BTile>(step) + n * 16 * 128);
        multiply(&r[8 * n], a_hi, a_lo, b_hi, b_lo);
      }
    }
  }

  // R = A B, kPart columns of B from `part` * kPart on; A in registers.
  template <typename BTile, int kWords>
  static __device__ __forceinline__ void issue_values(float (&r)[kPart / 2], const uint32_t (&a_hi)[kWords],
                                                      const uint32_t (&a_lo)[kWords],
                                                      const uint8_t (&s_b)[2][BTile::kBytes], int part) {
    const int lane = ptx::thread_afresh() % 32;
    const LaneAddress of_b_hi(s_b[0], lane % 16, lane / 16), of_b_lo(s_b[1], lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < kPart / 2; ++i) r[i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kWords / 4; ++step) {
#pragma unroll
      for (int n = 0; n < kPart / 16; ++n) {
        uint32_t b_hi[4], b_lo[4];
        const int columns = part * (kPart / 16) + n;
        ptx::ldmatrix_x4_transposed(b_hi, of_b_hi.at<BTile>(columns) + step * 16 * 128);
        ptx::ldmatrix_x4_transposed(b_lo, of_b_lo.at<BTile>(columns) + step * 16 * 128);
        multiply(&r[8 * n], &a_hi[4 * step], &a_lo[4 * step], b_hi, b_lo);
      }
    }
  }

 private:
  static __device__ __forceinline__ void multiply(float* d, const uint32_t* a_hi, const uint32_t* a_lo,
                                                  const uint32_t (&b_hi)[4], const uint32_t (&b_lo)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::mma_16x8x16<__half>(d + 4 * i, a_lo, b_hi[2 * i], b_hi[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::mma_16x8x16<__half>(d + 4 * i, a_hi, b_lo[2 * i], b_lo[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::mma_16x8x16<__half>(d + 4 * i, a_hi, b_hi[2 * i], b_hi[2 * i + 1]);
  }
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_F32_PRODUCT_H_
