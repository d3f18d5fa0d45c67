// A consumer warpgroup: 64 queries against all their keys, one piece of work after the other.
//
// One step, from tile j to tile j - 1:
//   issue  S = Q K(j - 1)^T, then O += P V(j)      both in the matrix unit, one after the other
//   S done      its K stage is free; mask, maxima and half of the exponentials while the second product runs
//   O done      its V stage is free; rescale O if a maximum rose; the other exponentials; P = round(S)
// Warpgroups issue in turns, so one's exponentials run under another's products.
//
// A step is a chain of latencies, and what stands in it costs speed even where every unit has time to spare:
// checks are made once a piece of work, or while a product is awaited anyway.
#ifndef TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_
#define TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_

#include "core/softmax.h"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/sm90/forward_config.cuh"
#include "cuda/tile/clear.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/product.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::sm90 {

constexpr int kTurnBarrier = 1, kGroupBarrier = 5;  // + warpgroup

template <typename C>
struct Consumer {
  using T = typename C::Element;

  const ForwardArgs& args;
  ForwardShared<C>& shared;
  const int group;    // warpgroup
  const bool leader;  // first lane of its warp
  Ring<C::kStages> k, v;
  OddRing<C::kQueries> q;
  Ring<kWorkSlots> slot;
  float r_s[C::kTileN / 2];
  uint32_t r_p[C::kTileN / 4];
  float r_o[C::kDimV / 2];
  tile::LaggingSoftmax softmax;

  __device__ __forceinline__ void run() {
    if (takes_turns() && group == C::kConsumers - 1) ptx::barrier_arrive(kTurnBarrier, 256);
    q.advance(group);
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::Work& work = shared.work[slot.at()];
      if (work.batch < 0) break;
      if (work.tile_first < work.tile_last) {
        attend(work);
        finish(work);
      } else {
        write_nothing(work);
      }
      // All threads read the work.
      ptx::mbarrier_arrive(&shared.work_empty[slot.at()]);
      slot.advance();
    }
  }

 private:
  static constexpr bool takes_turns() { return C::kConsumers > 1; }

  // A barrier of the empty kind counts the warps that read the buffer.
  __device__ __forceinline__ void release(ptx::Mbarrier* empty) {
    if (leader) ptx::mbarrier_arrive(empty);
  }

  // First of this thread's two rows within the tile.
  static __device__ __forceinline__ int row_of(int thread) {
    return 16 * (thread / 32 - 4) + thread % 32 / 4;
  }

  __device__ __forceinline__ void attend(const tile::Work& w) {
    constexpr int kScores = C::kTileN / 2, kHalf = kScores / 2 / 4 * 4;
    // From a shuffle the compiler knows that they are the same in all lanes: rings and descriptors stay in
    // uniform registers then, where wgmma wants them.
    const int first = __shfl_sync(~0u, w.tile_first, 0);
    const int full_first = __shfl_sync(~0u, w.full_first, 0), full_last = __shfl_sync(~0u, w.full_last, 0);
    int tile = __shfl_sync(~0u, w.tile_last - 1, 0);
    ptx::mbarrier_wait(&shared.q_full[q.at()], q.phase());
    ptx::mbarrier_wait(&shared.k_full[k.at()], k.phase());
    issue_scores();
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) r_o[i] = 0.0f;
    softmax = {};
    ptx::wgmma_wait<0>();
    ptx::pin(r_s);
    leave_keys();
    prepare(w, tile, w.is_full(tile));
    softmax.raise(r_s, args.scale_log2);
    softmax.template weigh<0, kScores>(r_s, args.scale_log2);
    tile::round_weights<T>(r_p, r_s);
    // Only the first and the last tile hold keys that nobody sees.
    if (tile > first) clear_unseen(w, tile);

    while (tile > first) {
      ptx::mbarrier_wait(&shared.k_full[k.at()], k.phase());
      begin_turn();
      issue_scores();
      ptx::mbarrier_wait(&shared.v_full[v.at()], v.phase());
      issue_values();
      end_turn();
      --tile;
      softmax.allow_lag(args.scale_log2);
      ptx::wgmma_wait<1>();
      ptx::pin(r_s);
      leave_keys();
      prepare(w, tile, tile >= full_first && tile < full_last);
      const tile::Decay decay = softmax.raise(r_s, args.scale_log2);
      softmax.template weigh<0, kHalf>(r_s, args.scale_log2);
      ptx::wgmma_wait<0>();
      ptx::pin(r_o);
      ptx::pin(r_s);
      leave_values();
      decay.apply(r_o);
      softmax.template weigh<kHalf, kScores>(r_s, args.scale_log2);
      tile::round_weights<T>(r_p, r_s);
    }
    leave_queries();
    clear_unseen(w, tile);
    issue_values();
    ptx::wgmma_wait<0>();
    ptx::pin(r_o);
    leave_values();
  }

  __device__ __forceinline__ void begin_turn() {
    if (takes_turns()) ptx::barrier_sync(kTurnBarrier + group, 256);
  }
  __device__ __forceinline__ void end_turn() {
    if (takes_turns()) ptx::barrier_arrive(kTurnBarrier + (group + 1) % C::kConsumers, 256);
  }

  __device__ __forceinline__ void issue_scores() {
    tile::issue_scores<T, C::kTileN, C::kDim>(r_s, C::QTile::k_major(shared.q[q.at()]),
                                              C::KTile::k_major(shared.k[k.at()]));
  }

  __device__ __forceinline__ void issue_values() {
    tile::issue_values<T, C::kTileN, C::kDimV>(r_o, r_p, C::VTile::mn_major(shared.v[v.at()]), true);
  }

  __device__ __forceinline__ void leave_queries() {
    release(&shared.q_empty[q.at()]);
    q.advance(C::kConsumers);
  }

  __device__ __forceinline__ void leave_keys() {
    release(&shared.k_empty[k.at()]);
    k.advance();
  }

  __device__ __forceinline__ void leave_values() {
    release(&shared.v_empty[v.at()]);
    v.advance();
  }

  // Waits for a tile of values and zeroes those that no row of the block's tile sees.
  __device__ __forceinline__ void clear_unseen(const tile::Work& w, int tile) {
    ptx::mbarrier_wait(&shared.v_full[v.at()], v.phase());
    const int key = tile * C::kTileN;
    if (w.see_first <= key && w.see_last >= key + C::kTileN) return;
    tile::clear_outside<C::kTileN, C::kDimV>(shared.v[v.at()], w.see_first - key, w.see_last - key,
                                             kGroupBarrier + group);
  }

  __device__ __forceinline__ void prepare(const tile::Work& w, int tile, bool full) {
    if (full && !C::kShaped) return;
    const int thread = ptx::thread_afresh();
    const int row = w.row + row_of(thread), key = tile * C::kTileN, lane_column = 2 * (thread % 4);
    if constexpr (C::kShaped) {
      const ForwardParams& p = args.params;
      tile::shape(r_s, p.scale, p.softcap, p.alibi_slope(w.batch, w.head), row + w.q_offset, w.beyond, key,
                  lane_column);
    }
    if (!full) tile::hide(r_s, w, row, key, lane_column);
  }

  // O = 0 where no row of the tile sees a key.
  __device__ __forceinline__ void write_nothing(const tile::Work& w) {
    const ForwardParams& p = args.params;
    const int thread = ptx::thread_afresh(), lane = thread % 32;
    for (int i = 0; i < 16; ++i) {
      const int row = __shfl_sync(~0u, w.row + row_of(thread - lane) + i, 0);
      if (row >= w.rows_q) return;
      const int64_t at =
          w.batch * p.o.batch_stride + w.head * p.o.head_stride + (w.q_begin + row) * p.o.row_stride;
      for (int column = lane; column < p.head_dim_v; column += 32) {
        if (p.o.dtype == DType::f32)
          static_cast<float*>(p.o.data)[at + column] = 0.0f;
        else
          static_cast<uint16_t*>(p.o.data)[at + column] = 0;
      }
      if (p.lse.data && lane == 0)
        p.lse.data[w.batch * p.lse.batch_stride + w.head * p.lse.head_stride +
                   (w.q_begin + row) * p.lse.row_stride] = w.empty_lse(p, row);
    }
  }

  // Divides by the sums, takes in the sink, writes O and LSE.
  __device__ __forceinline__ void finish(const tile::Work& w) {
    const ForwardParams& p = args.params;
    const int thread = ptx::thread_afresh(), lane = thread % 32;
    if (__any_sync(~0u, tile::spoiled(r_o, w, w.row + row_of(thread)))) {
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        const int row = __shfl_sync(~0u, w.row + row_of(thread - lane) + i, 0);
        if (row >= w.rows_q) continue;
        const int key = w.lo(row), last = row < w.len_q ? w.hi(row) : key;
        tile::exact_row<T, C::kDimV>(p, w, row, w.head / args.queries_per_key_head, lane, key, last,
                                     tile::PlainPairs());
      }
      return;
    }
    softmax.finish();
    const float sink = p.sinks ? p.sinks[w.head * p.sinks_stride] * kLog2E : kNegativeInfinity;
    tile::RowPair ends;
    ends.first = w.row + row_of(thread);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = ends.first + 8 * r;
      const float shift = softmax.shift(r, args.scale_log2);
      const float top = p.sinks ? fmaxf(shift, sink) : shift;
      const float of_keys = p.sinks ? ptx::exp2_approx(shift - top) : 1.0f;
      const float sum = softmax.sum[r] * of_keys + (p.sinks ? ptx::exp2_approx(sink - top) : 0.0f);
      ends.sees[r] = softmax.sum[r] != 0.0f && row < w.len_q;
      ends.factor[r] = ends.sees[r] ? __fdividef(of_keys, sum) : 0.0f;
      ends.lse[r] = ends.sees[r] ? (top + ptx::log2_approx(sum)) * kLn2 : w.empty_lse(p, row);
    }
    tile::write_rows<T>(p, w, r_o, ends, args.wide_stores, lane);
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_
