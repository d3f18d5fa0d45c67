// The two products of a wide block and the softmax between them. A thread has the rows 16 w + lane / 4 and
// + 8 (w: its warp in its warpgroup) of everything; both warpgroups hold the same scores, maxima and sums,
// bit for bit, and each half of O's columns.
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_PRODUCT_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_PRODUCT_H_

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm80/split_rows.cuh"
#include "cuda/sm80/split_softmax.cuh"
#include "cuda/sm90/split_wide_config.cuh"

namespace tilewise::sm90 {

template <typename C>
struct WideProducts {
  using T = typename C::Element;
  static constexpr int kScores = C::kKeys / 2;  // of a thread

  const int group;  // of the two warpgroups, in a uniform register
  float r_o[C::kHalf / 2];
  float r_s[kScores];    // of a step
  float top[2], sum[2];  // sums are the lane's own until `finish`

  __device__ __forceinline__ WideProducts() : group(__shfl_sync(~0u, worker<C>() / 128, 0)) {}

  // First of the thread's rows.
  static __device__ __forceinline__ int row() {
    const int thread = worker<C>();
    return thread % 128 / 32 * 16 + thread % 32 / 4;
  }

  // By all that multiply, who must meet before the products: Q and what is known of rows, to shared memory.
  __device__ __forceinline__ void begin(const sm80::SplitArgs& args, WideShared<C>& shared,
                                        const sm80::Unit& u) {
    const ForwardParams& p = args.params;
    if (worker<C>() == 0) {
      const int first = u.query(args, 0), last = u.query(args, max(u.rows - 1, 0));
      shared.full_first = last < u.w.len_q ? max(u.w.lo(last), 0) : INT32_MAX;
      shared.full_last = last < u.w.len_q ? u.w.hi(first) : 0;
      shared.beyond = u.w.beyond;
    }
    if (const int r = worker<C>(); r < C::kRows) {
      const int query = u.query(args, r);
      const bool real = r < u.rows && query < u.w.len_q;
      shared.lo[r] = real ? u.w.lo(query) : 0;
      shared.hi[r] = real ? u.w.hi(query) : 0;
      shared.position[r] = query + u.w.q_offset;
      shared.slope[r] = real ? p.alibi_slope(u.w.batch, u.head(args, r)) * kLog2E : 0.0f;
    }
    load_queries(args, shared, u);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = kNegativeInfinity;
      sum[r] = 0.0f;
    }
#pragma unroll
    for (float& o : r_o) o = 0.0f;
  }

  // Scores of keys from key0 on to rounded weights; O falls where a maximum rises.
  __device__ __forceinline__ void weigh(const sm80::SplitArgs& args, const WideShared<C>& shared, int key0,
                                        uint32_t (&r_p)[kScores / 2]) {
    const int key = key0 + 2 * (threadIdx.x % 4);
    sm80::scale_products(args, r_s);
    if (args.params.alibi_slopes) sm80::slope_scores(shared, r_s, row(), key, shared.beyond);
    if (key0 < shared.full_first || key0 + C::kKeys > shared.full_last)
      sm80::hide_scores(shared, r_s, row(), key);
    sm80::raise_rows(top, sum, r_s, r_o);
    sm80::weigh_rows(top, sum, r_s);
    tile::round_weights<T>(r_p, r_s);
  }

  __device__ __forceinline__ void issue_values(const uint32_t (&r_p)[kScores / 2], uint32_t v) {
    v += group * (C::kHalf / tile::kPanelColumns * C::VTile::kPanelBytes >> 4);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i)
      ptx::Wgmma<C::kHalf, T>::rs(r_o, r_p + 4 * i, tile::descriptor(v + C::VTile::mn_major_step(i)), 1);
    ptx::wgmma_commit();
  }

  // Adds up the sums of the lanes that share a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = tile::row_sum(sum[r]);
  }

 private:
  __device__ __forceinline__ void load_queries(const sm80::SplitArgs& args, WideShared<C>& shared,
                                               const sm80::Unit& u) const {
    const ForwardParams& p = args.params;
    constexpr int kWarps = C::kWorkers / 32, kChunks = C::kDim / 8;
    const int lane = threadIdx.x % 32, bytes = 2 * static_cast<int>(p.head_dim);
#pragma unroll 4
    for (int i = 0; i < C::kRows / kWarps; ++i) {
      const int r = worker<C>() / 32 + i * kWarps, query = u.query(args, r);
      const bool real = r < u.rows && query < u.w.len_q;
      const T* g_q = static_cast<const T*>(p.q.data);
      if (real) g_q += p.q.at(u.w.batch, u.w.q_begin + query, u.head(args, r));
#pragma unroll
      for (int chunk = lane; chunk < (kChunks + 31) / 32 * 32; chunk += 32) {
        const int some = real ? min(max(bytes - 16 * chunk, 0), 16) : 0;
        if (chunk < kChunks)
          ptx::cp_async_16(ptx::shared_address(shared.q) + C::QTile::chunk_offset(r, chunk),
                           some > 0 ? g_q + 8 * chunk : static_cast<const T*>(p.q.data), some);
      }
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_PRODUCT_H_
