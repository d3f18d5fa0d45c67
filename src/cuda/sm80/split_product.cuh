// The two products of a warp and the softmax between them, 16 rows by 16 keys a step.
#ifndef TILEWISE_CUDA_SM80_SPLIT_PRODUCT_H_
#define TILEWISE_CUDA_SM80_SPLIT_PRODUCT_H_

#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/split_rows.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::sm80 {

template <typename C>
struct Products {
  using T = typename C::Element;
  using Tile = tile::SharedTile<C::kKeys, C::kDim>;

  uint32_t r_q[C::kDim / 16][4];
  float r_o[C::kDim / 2];
  float top[2], sum[2];       // of rows lane / 4 and + 8; sums are the lane's own until `finish`
  int full_first, full_last;  // keys that every row of the unit sees
  float beyond;               // tile/work.cuh

  // By the whole block.
  __device__ __forceinline__ void begin(const SplitArgs& args, SplitShared<C>& shared, const Unit& u) {
    const ForwardParams& p = args.params;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = static_cast<int>(p.head_dim);
    const int first = u.query(args, 0), last = u.query(args, max(u.rows - 1, 0));
    full_first = last < u.w.len_q ? max(u.w.lo(last), 0) : INT32_MAX;
    full_last = last < u.w.len_q ? u.w.hi(first) : 0;
    beyond = u.w.beyond;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r, query = u.query(args, row), head = u.head(args, row);
      const bool real = row < u.rows && query < u.w.len_q;
      if (warp == 0 && lane % 4 == 0) {
        shared.lo[row] = real ? u.w.lo(query) : 0;
        shared.hi[row] = real ? u.w.hi(query) : 0;
        shared.position[row] = query + u.w.q_offset;
        shared.slope[row] = real ? p.alibi_slope(u.w.batch, head) * kLog2E : 0.0f;
      }
      top[r] = kNegativeInfinity;
      sum[r] = 0.0f;
      const T* g_q = static_cast<const T*>(p.q.data) + p.q.at(u.w.batch, u.w.q_begin + query, head);
      // Q to shared memory, some of its columns by each warp. What lay there has been read: the unit before
      // ended in a barrier.
#pragma unroll 2
      for (int chunk = warp; chunk < C::kDim / 8; chunk += C::kWarps)
        *reinterpret_cast<uint32_t*>(shared.q + Tile::chunk_offset(row, chunk) + 4 * (lane % 4)) =
            real ? two_of(g_q, 8 * chunk + 2 * (lane % 4), dim) : 0u;
    }
    __syncthreads();
    const uint32_t s_q = ptx::shared_address(shared.q);
#pragma unroll
    for (int k = 0; k < C::kDim / 16; ++k)
      ptx::ldmatrix_x4(r_q[k], s_q + Tile::chunk_offset(lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) r_o[i] = 0.0f;
  }

  __device__ __forceinline__ void step(const SplitArgs& args, const SplitShared<C>& shared, uint32_t s_stage,
                                       int key0) {
    const int lane = threadIdx.x % 32;
    // Odd and even sums apart: products wait less for each other.
    float r_s[8] = {}, r_odd[8] = {};
#pragma unroll
    for (int k = 0; k < C::kDim / 16; ++k) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, s_stage + Tile::chunk_offset(lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
      float* to = k % 2 ? r_odd : r_s;
      ptx::mma_16x8x16<T>(to, r_q[k], b[0], b[1]);
      ptx::mma_16x8x16<T>(to + 4, r_q[k], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) r_s[i] += r_odd[i];
    finish_scores(args, shared, r_s, key0 + 2 * (lane % 4));
    if (key0 < full_first || key0 + C::kKeys > full_last) hide(shared, r_s, key0 + 2 * (lane % 4));
    raise(r_s);
    uint32_t r_p[4];
    weigh(r_s, r_p);
#pragma unroll
    for (int n = 0; n < C::kDim / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_transposed(b,
                                  s_stage + C::kHalfBytes + Tile::chunk_offset(lane % 16, 2 * n + lane / 16));
      ptx::mma_16x8x16<T>(r_o + 8 * n, r_p, b[0], b[1]);
      ptx::mma_16x8x16<T>(r_o + 8 * n + 4, r_p, b[2], b[3]);
    }
  }

  // Adds up the sums of the lanes that share a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = tile::row_sum(sum[r]);
  }

 private:
  // Elements d and d + 1 of a row; zeros past its end.
  static __device__ __forceinline__ uint32_t two_of(const T* g_row, int d, int dim) {
    if (d + 1 < dim) return *reinterpret_cast<const uint32_t*>(g_row + d);
    return d < dim ? *reinterpret_cast<const uint16_t*>(g_row + d) : 0u;
  }

  // Products to scores in exponents of 2. `key` is of the first column.
  __device__ __forceinline__ void finish_scores(const SplitArgs& args, const SplitShared<C>& shared,
                                                float (&r_s)[8], int key) const {
    if (args.softcap_log2 > 0.0f) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        r_s[i] = args.softcap_log2 * tile::tanh_branchless(r_s[i] * args.params.scale * args.inverse_cap);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) r_s[i] *= args.scale_log2;
    }
    if (args.params.alibi_slopes) {
      const int row = threadIdx.x % 32 / 4;
      const int position[2] = {shared.position[row], shared.position[row + 8]};
      const float slope[2] = {shared.slope[row], shared.slope[row + 8]};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int distance = position[i / 2 % 2] - key - tile::fragment_column(i);
        r_s[i] -= slope[i / 2 % 2] * (fabsf(static_cast<float>(distance)) + beyond);
      }
    }
  }

  __device__ __forceinline__ void hide(const SplitShared<C>& shared, float (&r_s)[8], int key) const {
    const int row = threadIdx.x % 32 / 4;
    const int lo[2] = {shared.lo[row], shared.lo[row + 8]}, hi[2] = {shared.hi[row], shared.hi[row + 8]};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = key + tile::fragment_column(i);
      if (column < lo[i / 2 % 2] || column >= hi[i / 2 % 2]) r_s[i] = kNegativeInfinity;
    }
  }

  // Takes in the maxima; what was summed up before falls where they rise.
  __device__ __forceinline__ void raise(const float (&r_s)[8]) {
    float peak[2];
    tile::row_peaks(peak, r_s);
    if (!__any_sync(~0u, peak[0] > top[0] || peak[1] > top[1])) return;
    float fall[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float risen = fmaxf(top[r], peak[r]);
      fall[r] = risen == top[r] ? 1.0f : ptx::exp2_approx(top[r] - risen);
      top[r] = risen;
      sum[r] *= fall[r];
    }
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) r_o[i] *= fall[i / 2 % 2];
  }

  __device__ __forceinline__ void weigh(const float (&r_s)[8], uint32_t (&r_p)[4]) {
    const float from[2] = {top[0] == kNegativeInfinity ? 0.0f : top[0],
                           top[1] == kNegativeInfinity ? 0.0f : top[1]};
    float weight[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      weight[i] = ptx::exp2_approx(r_s[i] - from[i / 2 % 2]);
      sum[i / 2 % 2] += weight[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) r_p[i] = ptx::pack<T>(weight[2 * i], weight[2 * i + 1]);
  }
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_PRODUCT_H_
