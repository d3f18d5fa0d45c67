// A consumer warpgroup: 64 queries against all their keys.
//
// One step, from tile j + 1 to tile j:
//   issue  S = Q K(j)^T, then O += P V(j + 1)       both in the matrix unit, one after the other
//   S done      its K stage is free; mask, maxima, exponentials while the second product runs
//   O done      its V stage is free; rescale O if the maximum rose; the rest of the exponentials; P = round(S)
// Warpgroups issue in turns, so one's exponentials run under another's products.
#ifndef TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_
#define TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_

#include "core/softmax.h"
#include "cuda/ptx/barrier.cuh"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/sm90/forward_config.cuh"
#include "cuda/tile/product.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/store.cuh"

namespace tilewise::sm90 {

constexpr int kTurnBarrier = 1, kGroupBarrier = 5;  // + warpgroup

template <typename C>
struct Consumer {
  using T = typename C::Element;

  const ForwardArgs& args;
  ForwardShared<C>& shared;
  const int group, warp, lane;  // warpgroup, warp within it, lane
  Ring<C::kStages> k, v;
  Ring<kWorkSlots> slot;
  uint32_t q_phase = 0;
  float r_s[C::kTileN / 2];
  uint32_t r_p[C::kTileN / 4];
  float r_o[C::kDimV / 2];
  tile::OnlineSoftmax softmax;

  __device__ __forceinline__ void run() {
    if (takes_turns() && group == C::kConsumers - 1) ptx::barrier_arrive(kTurnBarrier, 256);
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at], slot.phase);
      const tile::Work& work = shared.work[slot.at];
      if (work.batch < 0) break;
#pragma unroll
      for (int i = 0; i < C::kDimV / 2; ++i) r_o[i] = 0.0f;
      softmax = {};
      if (work.tile_first < work.tile_last) attend(work);
      finish(work);
      release(&shared.work_empty[slot.at]);
      slot.advance();
    }
  }

 private:
  static constexpr bool takes_turns() { return C::kTurns == Turns::products && C::kConsumers > 1; }

  // A barrier of the empty kind counts the warps that read the buffer.
  __device__ __forceinline__ void release(ptx::Mbarrier* empty) {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(empty);
  }

  __device__ __forceinline__ int first_row(const tile::Work& w) const {
    return w.row + 64 * group + 16 * warp + lane / 4;
  }

  __device__ __forceinline__ void attend(const tile::Work& w) {
    constexpr int kScores = C::kTileN / 2, kHalf = kScores / 2 / 4 * 4;
    const int first = w.tile_first;
    int tile = w.tile_last - 1;
    const uint64_t q = C::QTile::k_major(shared.q[group]);

    ptx::mbarrier_wait(&shared.q_full[group], q_phase);
    q_phase ^= 1;
    ptx::mbarrier_wait(&shared.k_full[k.at], k.phase);
    tile::issue_scores<T, C::kTileN, C::kDim>(r_s, q, C::KTile::k_major(shared.k[k.at]));
    ptx::wgmma_wait<0>();
    ptx::pin(r_s);
    leave_keys(tile == first);
    prepare(w, tile);
    softmax.raise(r_s, args.scale_log2);
    softmax.template weigh<0, kScores>(r_s, args.scale_log2);
    tile::round_weights<T, 0, kScores>(r_p, r_s);

    while (tile > first) {
      ptx::mbarrier_wait(&shared.k_full[k.at], k.phase);
      if (takes_turns()) ptx::barrier_sync(kTurnBarrier + group, 256);
      tile::issue_scores<T, C::kTileN, C::kDim>(r_s, q, C::KTile::k_major(shared.k[k.at]));
      issue_values(w, tile);
      if (takes_turns()) ptx::barrier_arrive(kTurnBarrier + (group + 1) % C::kConsumers, 256);
      --tile;
      ptx::wgmma_wait<1>();
      ptx::pin(r_s);
      leave_keys(tile == first);
      prepare(w, tile);
      const bool rescale = softmax.raise(r_s, args.scale_log2);
      softmax.template weigh<0, kHalf>(r_s, args.scale_log2);
      ptx::wgmma_wait<0>();
      ptx::pin(r_o);
      ptx::pin(r_s);
      leave_values();
      if (rescale) softmax.rescale(r_o);
      softmax.template weigh<kHalf, kScores>(r_s, args.scale_log2);
      tile::round_weights<T, 0, kScores>(r_p, r_s);
    }
    issue_values(w, tile);
    ptx::wgmma_wait<0>();
    ptx::pin(r_o);
    leave_values();
  }

  __device__ __forceinline__ void leave_keys(bool last) {
    release(&shared.k_empty[k.at]);
    k.advance();
    if (last) release(&shared.q_empty[group]);
  }

  __device__ __forceinline__ void leave_values() {
    release(&shared.v_empty[v.at]);
    v.advance();
  }

  __device__ __forceinline__ void issue_values(const tile::Work& w, int tile) {
    ptx::mbarrier_wait(&shared.v_full[v.at], v.phase);
    const int key = tile * C::kTileN;
    if (w.see_first > key || w.see_last < key + C::kTileN) clear_unseen(w, key);
    tile::issue_values<T, C::kTileN, C::kDimV>(r_o, r_p, C::VTile::mn_major(shared.v[v.at]), true);
  }

  // Zeroes the values that no row of the tile sees: their weights are 0, but 0 * NaN is not. Every warpgroup does
  // it for itself; the second one writes zeros over zeros.
  __device__ __forceinline__ void clear_unseen(const tile::Work& w, int key) {
    constexpr int kChunks = C::VTile::kPanels * 8;
    for (int i = 32 * warp + lane; i < C::kTileN * kChunks; i += 128) {
      const int row = i / kChunks;
      if (key + row < w.see_first || key + row >= w.see_last)
        *reinterpret_cast<uint4*>(shared.v[v.at] + C::VTile::chunk_offset(row, i % kChunks)) = uint4{};
    }
    ptx::fence_async_shared();
    ptx::barrier_sync(kGroupBarrier + group, 128);
  }

  __device__ __forceinline__ void prepare(const tile::Work& w, int tile) {
    const int row = first_row(w), key = tile * C::kTileN, lane_column = 2 * (lane % 4);
    if constexpr (C::kShaped) {
      const ForwardParams& p = args.params;
      const float slope = p.alibi_slopes ? p.alibi_slopes[w.batch * p.alibi_batch_stride +
                                                          w.head * p.alibi_head_stride]
                                         : 0.0f;
      tile::shape(r_s, p.scale, p.softcap, slope, row + w.q_offset, key, lane_column);
    }
    if (!w.is_full(tile)) tile::hide(r_s, w, row, key, lane_column);
  }

  // Divides by the sums, takes in the sink, writes O and LSE.
  __device__ __forceinline__ void finish(const tile::Work& w) {
    const ForwardParams& p = args.params;
    softmax.finish();
    const float sink = p.sinks ? p.sinks[w.head * p.sinks_stride] * kLog2E : kNegativeInfinity;
    float factor[2];
    bool wanted[2];
    int64_t rows[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row(w) + 8 * r;
      wanted[r] = row < w.rows_q;
      rows[r] = w.q_begin + row;
      const bool sees = softmax.sum[r] != 0.0f && row < w.len_q;
      const float top = fmaxf(softmax.shift[r], sink);
      float sum = softmax.sum[r], mine = 1.0f, lse;
      if (p.sinks) {
        mine = ptx::exp2_approx(softmax.shift[r] - top);
        sum = sum * mine + ptx::exp2_approx(sink - top);
      }
      factor[r] = sees ? mine / sum : 0.0f;
      lse = ((p.sinks ? top : softmax.shift[r]) + ptx::log2_approx(sum)) * kLn2;
      if (!sees) lse = sink * kLn2;
      if (p.lse.data && wanted[r] && lane % 4 == 0)
        p.lse.data[w.batch * p.lse.batch_stride + w.head * p.lse.head_stride + rows[r] * p.lse.row_stride] = lse;
#pragma unroll
      for (int i = 2 * r; i < C::kDimV / 2; i += 4) {
        r_o[i] = sees ? r_o[i] * factor[r] : 0.0f;
        r_o[i + 1] = sees ? r_o[i + 1] * factor[r] : 0.0f;
      }
    }
    const int64_t base = w.batch * p.o.batch_stride + w.head * p.o.head_stride;
    const int head_dim = static_cast<int>(p.head_dim_v);
    if (p.o.dtype == DType::f32) {
      float* g_row[2] = {static_cast<float*>(p.o.data) + base + rows[0] * p.o.row_stride,
                         static_cast<float*>(p.o.data) + base + rows[1] * p.o.row_stride};
      tile::store_rows(r_o, g_row, wanted, head_dim, lane);
    } else {
      T* g_row[2] = {static_cast<T*>(p.o.data) + base + rows[0] * p.o.row_stride,
                     static_cast<T*>(p.o.data) + base + rows[1] * p.o.row_stride};
      if (args.wide_stores)
        tile::store_rows_wide(r_o, g_row, wanted, head_dim, lane);
      else
        tile::store_rows(r_o, g_row, wanted, head_dim, lane);
    }
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_
