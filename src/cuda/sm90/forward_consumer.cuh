// A consumer warpgroup: 64 queries against all their keys, one piece of work after the other.
//
// One step, from tile j to the next one, j - 1 or the last tile of the next piece of work:
//   issue  S = Q K(next)^T, then O += P V(j)       both in the matrix unit, one after the other
//   S done      its K stage is free; mask and maxima while the second product runs
//   O done      its V stage is free; rescale O if a maximum rose; exponentials; P = round(S)
// Warpgroups issue in turns, so one's exponentials run under another's products. Between two pieces of work
// both products end first and O is written; the other warpgroups keep the matrix unit busy.
#ifndef TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_
#define TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_

#include "core/softmax.h"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/sm90/forward_config.cuh"
#include "cuda/tile/exact.cuh"
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
  const int group;    // warpgroup
  const bool leader;  // first lane of its warp
  Ring<C::kStages> k, v;
  OddRing<C::kQueries> q;
  Ring<kWorkSlots> slot;  // of the next piece of work
  float r_s[C::kTileN / 2];
  uint32_t r_p[C::kTileN / 4];
  float r_o[C::kDimV / 2];
  tile::OnlineSoftmax softmax;
  uint32_t queries, keys, values;  // descriptors for the next step, found while the exponentials hide it

  __device__ __forceinline__ void run() {
    if (takes_turns() && group == C::kConsumers - 1) ptx::barrier_arrive(kTurnBarrier, 256);
    q.advance(group);
    find_queries();
    find_keys();
    find_values();
    while (const tile::Work* work = take_work()) {
      int tile = work->tile_last - 1;
      wait_queries();
      wait_keys();
      issue_scores(ptx::uniform(queries), ptx::uniform(keys));
      take_scores(*work);
      begin(*work);
      for (;;) {
        bool fresh = true;
        while (tile > work->tile_first) {
          if (!fresh && tile <= work->full_last) {
            const int stop = max(work->tile_first, work->full_first);
            while (tile > stop) tile = step<true>(*work, tile);
          }
          if (tile > work->tile_first) tile = step<false>(*work, tile);
          fresh = false;
        }
        const tile::Work* next = take_next();
        if (next == nullptr) break;
        end(*work, tile, *next);
        work = next;
        tile = work->tile_last - 1;
      }
      if (C::kAhead) leave_queries();
      issue_values<false>(*work, tile, ptx::uniform(values));
      ptx::wgmma_wait<0>();
      ptx::pin(r_o);
      leave_values();
      finish(*work);
      release_work(work);
    }
  }

 private:
  static constexpr bool takes_turns() { return C::kTurns == Turns::products && C::kConsumers > 1; }

  // A barrier of the empty kind counts the warps that read the buffer.
  __device__ __forceinline__ void release(ptx::Mbarrier* empty) {
    if (leader) ptx::mbarrier_arrive(empty);
  }

  // First of this thread's two rows within the tile.
  static __device__ __forceinline__ int row_of(int thread) {
    return 16 * (thread / 32 - 4) + thread % 32 / 4;
  }

  // kInterior: every query sees every key of the next tile, and this tile's values need no clearing.
  template <bool kInterior>
  __device__ __forceinline__ int step(const tile::Work& w, int tile) {
    const int next = tile - 1;
    const uint32_t u_queries = ptx::uniform(queries), u_keys = ptx::uniform(keys),
                   u_values = ptx::uniform(values);
    wait_keys();
    begin_turn();
    issue_scores(u_queries, u_keys);
    issue_values<kInterior>(w, tile, u_values);
    end_turn();
    ptx::wgmma_wait<1>();
    ptx::pin(r_s);
    leave_keys();
    if (!C::kAhead && next == w.tile_first) leave_queries();
    if (!kInterior || C::kShaped) prepare(w, next, kInterior || w.is_full(next));
    const tile::Decay decay = softmax.raise(r_s, args.scale_log2);
    ptx::wgmma_wait<0>();
    ptx::pin(r_o);
    leave_values();
    decay.apply(r_o);
    softmax.weigh(r_s, args.scale_log2);
    tile::round_weights<T>(r_p, r_s);
    return next;
  }

  // From the last tile of a piece of work to the first of the next one.
  __device__ __forceinline__ void end(const tile::Work& w, int tile, const tile::Work& next) {
    if (C::kAhead) {
      leave_queries();
      const uint32_t u_queries = ptx::uniform(queries), u_keys = ptx::uniform(keys),
                     u_values = ptx::uniform(values);
      wait_queries();
      wait_keys();
      begin_turn();
      issue_scores(u_queries, u_keys);
      issue_values<false>(w, tile, u_values);
      end_turn();
    } else {
      issue_values<false>(w, tile, ptx::uniform(values));
    }
    if (C::kAhead)
      take_scores(next);
    else
      ptx::wgmma_wait<0>();
    ptx::pin(r_o);
    leave_values();
    finish(w);
    release_work(&w);
    if (!C::kAhead) {
      wait_queries();
      wait_keys();
      issue_scores(ptx::uniform(queries), ptx::uniform(keys));
      take_scores(next);
    }
    begin(next);
  }

  // Waits for all products; the scores are of the first tile.
  __device__ __forceinline__ void take_scores(const tile::Work& w) {
    ptx::wgmma_wait<0>();
    ptx::pin(r_s);
    leave_keys();
    if (!C::kAhead && w.tile_last - 1 == w.tile_first) leave_queries();
  }

  __device__ __forceinline__ void begin(const tile::Work& w) {
    const int tile = w.tile_last - 1;
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) r_o[i] = 0.0f;
    softmax = {};
    prepare(w, tile, w.is_full(tile));
    softmax.raise(r_s, args.scale_log2);
    softmax.weigh(r_s, args.scale_log2);
    tile::round_weights<T>(r_p, r_s);
  }

  // The next piece of work that has keys, or null at the end; pieces without keys are written on the way.
  __device__ __forceinline__ const tile::Work* take_work() {
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::Work* work = &shared.work[slot.at()];
      slot.advance();
      if (work->batch < 0) return nullptr;
      if (work->tile_first < work->tile_last) return work;
      write_nothing(*work);
      release_work(work);
    }
  }

  // The next piece if it has keys; else null, and its slot stays unread. The piece in hand holds one of the
  // two slots, so skipping a piece without keys here would wait for a slot that nobody will free.
  __device__ __forceinline__ const tile::Work* take_next() {
    ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
    const tile::Work* work = &shared.work[slot.at()];
    if (work->batch < 0 || work->tile_first >= work->tile_last) return nullptr;
    slot.advance();
    return work;
  }

  __device__ __forceinline__ void release_work(const tile::Work* work) {
    ptx::mbarrier_arrive(&shared.work_empty[work - shared.work]);
  }

  __device__ __forceinline__ void begin_turn() {
    if (takes_turns()) ptx::barrier_sync(kTurnBarrier + group, 256);
  }
  __device__ __forceinline__ void end_turn() {
    if (takes_turns()) ptx::barrier_arrive(kTurnBarrier + (group + 1) % C::kConsumers, 256);
  }

  __device__ __forceinline__ void issue_scores(uint32_t u_queries, uint32_t u_keys) {
    tile::issue_scores<T, C::kTileN, C::kDim>(r_s, u_queries, u_keys);
  }

  __device__ __forceinline__ void wait_queries() { ptx::mbarrier_wait(&shared.q_full[q.at()], q.phase()); }
  __device__ __forceinline__ void wait_keys() { ptx::mbarrier_wait(&shared.k_full[k.at()], k.phase()); }
  __device__ __forceinline__ void wait_values() { ptx::mbarrier_wait(&shared.v_full[v.at()], v.phase()); }
  __device__ __forceinline__ void find_keys() { keys = C::KTile::k_major(shared.k[k.at()]); }
  __device__ __forceinline__ void find_values() { values = C::VTile::mn_major(shared.v[v.at()]); }
  __device__ __forceinline__ void find_queries() { queries = C::QTile::k_major(shared.q[q.at()]); }

  __device__ __forceinline__ void leave_queries() {
    release(&shared.q_empty[q.at()]);
    q.advance(C::kConsumers);
    find_queries();
  }

  __device__ __forceinline__ void leave_keys() {
    release(&shared.k_empty[k.at()]);
    k.advance();
    find_keys();
  }

  __device__ __forceinline__ void leave_values() {
    release(&shared.v_empty[v.at()]);
    v.advance();
    find_values();
  }

  template <bool kInterior>
  __device__ __forceinline__ void issue_values(const tile::Work& w, int tile, uint32_t u_values) {
    wait_values();
    if constexpr (!kInterior) {
      const int key = tile * C::kTileN;
      if (w.see_first > key || w.see_last < key + C::kTileN) clear_unseen(w, key);
    }
    tile::issue_values<T, C::kTileN, C::kDimV>(r_o, r_p, u_values, true);
  }

  // Zeroes the values that no row of the tile sees: their weights are 0, but 0 * NaN is not. Every warpgroup
  // does it for itself; the second one writes zeros over zeros.
  __device__ __forceinline__ void clear_unseen(const tile::Work& w, int key) {
    constexpr int kChunks = C::VTile::kPanels * 8;
    for (int i = ptx::thread_afresh() % 128; i < C::kTileN * kChunks; i += 128) {
      const int row = i / kChunks;
      if (key + row < w.see_first || key + row >= w.see_last)
        *reinterpret_cast<uint4*>(shared.v[v.at()] + C::VTile::chunk_offset(row, i % kChunks)) = uint4{};
    }
    ptx::fence_async_shared();
    ptx::barrier_sync(kGroupBarrier + group, 128);
  }

  __device__ __forceinline__ void prepare(const tile::Work& w, int tile, bool full) {
    if (full && !C::kShaped) return;
    const int thread = ptx::thread_afresh();
    const int row = w.row + row_of(thread), key = tile * C::kTileN, lane_column = 2 * (thread % 4);
    if constexpr (C::kShaped) {
      const ForwardParams& p = args.params;
      const float slope = p.alibi_slopes
                              ? p.alibi_slopes[w.batch * p.alibi_batch_stride + w.head * p.alibi_head_stride]
                              : 0.0f;
      tile::shape(r_s, p.scale, p.softcap, slope, row + w.q_offset, w.beyond, key, lane_column);
    }
    if (!full) tile::hide(r_s, w, row, key, lane_column);
  }

  // O = 0 where no row of the tile sees a key.
  __device__ __forceinline__ void write_nothing(const tile::Work& w) {
    const ForwardParams& p = args.params;
    const int thread = ptx::thread_afresh(), lane = thread % 32;
    for (int i = 0; i < 16; ++i) {
      const int row = w.row + row_of(thread - lane) + i;
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
    // Padding rows and those of the next packed sequence may hold anything: they must not send others there.
    float probe[2] = {};
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) probe[i / 2 % 2] += r_o[i] * 0.0f;
    const int mine = w.row + row_of(thread);
    if (__any_sync(~0u, (probe[0] != 0.0f && mine < w.len_q) || (probe[1] != 0.0f && mine + 8 < w.len_q))) {
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        const int row = w.row + row_of(thread - lane) + i;
        if (row >= w.rows_q) continue;
        const int key = w.lo(row), last = row < w.len_q ? w.hi(row) : key;
        tile::exact_row<T, C::kDimV>(p, w, row, w.head / args.queries_per_key_head, lane, key, last,
                                     tile::PlainPairs());
      }
      return;
    }
    softmax.finish();
    const float sink = p.sinks ? p.sinks[w.head * p.sinks_stride] * kLog2E : kNegativeInfinity;
    float factor[2], lse[2];
    bool sees[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = w.row + row_of(thread) + 8 * r;
      sees[r] = softmax.sum[r] != 0.0f && row < w.len_q;
      const float shift = softmax.shift(r, args.scale_log2);
      const float top = p.sinks ? fmaxf(shift, sink) : shift;
      const float of_keys = p.sinks ? ptx::exp2_approx(shift - top) : 1.0f;
      const float sum = softmax.sum[r] * of_keys + (p.sinks ? ptx::exp2_approx(sink - top) : 0.0f);
      factor[r] = __fdividef(of_keys, sum);
      lse[r] = (top + ptx::log2_approx(sum)) * kLn2;
    }
    // 0 * NaN is not 0.
    if (!__all_sync(~0u, sees[0] && sees[1])) {
#pragma unroll
      for (int i = 0; i < C::kDimV / 2; ++i) {
        if (!sees[i / 2 % 2]) r_o[i] = 0.0f;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (sees[r]) continue;
        factor[r] = 0.0f;
        lse[r] = w.empty_lse(p, w.row + row_of(thread) + 8 * r);
      }
    }
    const int first = w.row + row_of(thread);
    const int64_t row = w.q_begin + first;
    const int64_t at = w.batch * p.o.batch_stride + w.head * p.o.head_stride + row * p.o.row_stride;
    const int columns[2] = {first < w.rows_q ? static_cast<int>(p.head_dim_v) : 0,
                            first + 8 < w.rows_q ? static_cast<int>(p.head_dim_v) : 0};
    if (args.wide_stores)
      tile::store_wide(r_o, factor, static_cast<T*>(p.o.data) + at, 8 * p.o.row_stride, columns, lane);
    else if (p.o.dtype == DType::f32)
      tile::store_narrow(r_o, factor, static_cast<float*>(p.o.data) + at, 8 * p.o.row_stride, columns, lane);
    else
      tile::store_narrow(r_o, factor, static_cast<T*>(p.o.data) + at, 8 * p.o.row_stride, columns, lane);
    if (p.lse.data && lane % 4 == 0) {
      float* g_lse =
          p.lse.data + w.batch * p.lse.batch_stride + w.head * p.lse.head_stride + row * p.lse.row_stride;
      if (first < w.rows_q) g_lse[0] = lse[0];
      if (first + 8 < w.rows_q) g_lse[8 * p.lse.row_stride] = lse[1];
    }
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_
