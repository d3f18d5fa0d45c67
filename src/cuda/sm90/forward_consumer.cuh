// A consumer warpgroup: 64 queries against all their keys, one piece of work after the other.
//
// One step, from tile j to tile j - 1:
//   issue  S = Q K(j - 1)^T, then O += P V(j)      both in the matrix unit, one after the other
//   S done      its K stage is free; mask; weights of S and their sums while the second product runs; where a
//               row's weights have grown, they, its sum and O catch up (tile/late_softmax.cuh)
//   O done      its V stage is free; P = round(weights)
// Warpgroups issue in turns, so one's exponentials run under another's products. A warpgroup passes over
// tiles that none of its rows sees, but takes its turns.
//
// A step is a chain of latencies, and what stands in it costs speed even where every unit has time to spare:
// checks are made once a piece of work, or while a product is awaited anyway. Additions must stand among the
// exponentials, not behind them: ptxas leaves them there because the vote on the sums ends the block of code.
// Exponentials in one row fill a queue that wgmma of other warps goes through.
#ifndef TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_
#define TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/finish_rows.cuh"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/sm90/forward_config.cuh"
#include "cuda/tile/clear.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/late_softmax.cuh"
#include "cuda/tile/product.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/score_again.cuh"

namespace tilewise::sm90 {

constexpr int kTurnBarrier = 1, kGroupBarrier = 5;  // + warpgroup

template <typename C>
struct Consumer {
  using T = typename C::Element;

  const ForwardArgs& args;
  ForwardShared<C>& shared;
  const int group;    // warpgroup
  const bool leader;  // first lane of its warp
  RingOf<C::kKeyStages> k;
  RingOf<C::kValueStages> v;
  OddRing<C::kQueries> q;
  Ring<kWorkSlots> slot;
  float r_s[C::kTileN / 2];
  uint32_t r_p[C::kTileN / 4];
  float r_o[C::kDimV / 2];
  tile::LateSoftmax softmax;
  uint32_t owed =
      C::kQueries;  // the buffer of the last piece's queries, where O lies until it has been written

  __device__ __forceinline__ void run() {
    if (takes_turns() && group == C::kConsumers - 1) ptx::barrier_arrive(kTurnBarrier, 256);
    q.advance(group);
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::Work& work = shared.work[slot.at()];
      if (work.batch < 0) break;
      if (work.tile_first < work.tile_last) {
        attend(work);
        finish_rows<C>(*this, work, kStagesOutput && args.bulk_stores,
                       shared.q[owed % C::kQueries] + ptx::thread_afresh() % 128 / 32 * 16 * 128);
      } else {
        write_nothing(work);
      }
      // All threads read the work.
      ptx::mbarrier_arrive(&shared.work_empty[slot.at()]);
      slot.advance();
    }
    settle();
  }

  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }
  // The query of the first of this thread's two rows.
  __device__ __forceinline__ int row_now() const {
    return shared.work[slot.at()].row + row_of(ptx::thread_afresh());
  }
  __device__ __forceinline__ int kv_head() const {
    return args.key_heads.divide(shared.work[slot.at()].head);
  }

 private:
  // With buffers enough that the next piece's queries need not wait for it, O is staged where this piece's
  // lay.
  static constexpr bool kStagesOutput = C::kQueries == 2 * C::kConsumers;
  // Warpgroups whose rows see fewer key tiles than the block's walk their own.
  static constexpr bool kWalksOwn = C::kTileM - 64 >= C::kTileN;
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
    // From a shuffle the compiler knows that they are the same in all lanes: rings and descriptors stay in
    // uniform registers then, where wgmma wants them.
    const int first = __shfl_sync(~0u, w.tile_first, 0);
    int tile = __shfl_sync(~0u, w.tile_last - 1, 0);
    int resume = tile, full_first = w.full_first, full_last = w.full_last;
    if constexpr (kWalksOwn) {
      // What the warpgroup's own rows see, of the block's tiles.
      const int row = w.row + 64 * group, last_row = min(row + 64, w.len_q) - 1;
      const int own_last = last_row < row ? 0 : (w.hi(last_row) + C::kTileN - 1) / C::kTileN;
      resume = max(w.tile_first, min(own_last, w.tile_last)) - 1;
      full_first = (max(w.lo(last_row), 0) + C::kTileN - 1) / C::kTileN;
      full_last = max(w.hi(row), 0) / C::kTileN;
      resume = __shfl_sync(~0u, resume, 0);
    }
    full_first = __shfl_sync(~0u, full_first, 0);
    full_last = __shfl_sync(~0u, full_last, 0);
    ptx::mbarrier_wait(&shared.q_full[q.at()], q.phase());
    if constexpr (kWalksOwn) {
#pragma unroll 1
      for (int passed = tile; passed > resume; --passed) pass(passed > first);
      tile = resume;
    }
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) r_o[i] = 0.0f;
    softmax = {};
    if (kWalksOwn && tile < first) {
      settle();
      leave_queries();
      return;
    }
    ptx::mbarrier_wait(&shared.k_full[k.at()], k.phase());
    issue_scores();
    settle();
    ptx::wgmma_wait<0>();
    ptx::pin(r_s);
    // Where rows see a part of the first tile, the next one tells more.
    const bool full = tile >= full_first && tile < full_last;
    const int look_at = full ? -1 : tile - 1;
    prepare(w, tile, full);
    softmax.look(r_s, args.scale_log2, false);
    float of_tile[2];
    softmax.weigh(r_s, args.scale_log2, of_tile);
    softmax.keep(of_tile);
    tile::round_weights<T>(r_p, r_s);
    leave_keys();
    if (tile > first) {
      // Only the first and the last tile hold keys that nobody sees.
      clear_unseen(w, tile);
      ptx::mbarrier_wait(&shared.k_full[k.at()], k.phase());
    }
    while (tile > first) {
      begin_turn();
      issue_scores();
      ptx::mbarrier_wait(&shared.v_full[v.at()], v.phase());
      issue_values();
      end_turn();
      --tile;
      const bool begins = softmax.set_room();
      ptx::wgmma_wait<1>();
      ptx::pin(r_s);
      leave_keys();
      prepare(w, tile, tile >= full_first && tile < full_last);
      if (tile == look_at || begins) decay_values(softmax.look(r_s, args.scale_log2, tile == look_at));
      const bool outgrown = softmax.weigh(r_s, args.scale_log2, of_tile);
      if (!outgrown) softmax.keep(of_tile);
      // A branch, which ptxas moves no wait across: the one for O must stay behind the exponentials.
      ptx::pin(r_s);
      if (tile > first) ptx::mbarrier_wait(&shared.k_full[k.at()], k.phase());
      ptx::wgmma_wait<0>();
      ptx::pin(r_o);
      ptx::pin(r_s);
      // Behind the wait, which all warps of a group have to take together.
      if (outgrown) [[unlikely]] {
        bool lost[2];
        softmax.catch_up(r_s, of_tile, lost).apply(r_o);
        if (__any_sync(~0u, lost[0] || lost[1])) {
          const int here = ptx::afresh(tile);
          score_again(lost, w, here, here >= full_first && here < full_last);
          softmax.recover(r_s, args.scale_log2, lost);
        }
      }
      leave_values();
      tile::round_weights<T>(r_p, r_s);
    }
    leave_queries();
    clear_unseen(w, tile);
    issue_values();
    ptx::wgmma_wait<0>();
    ptx::pin(r_o);
    leave_values();
  }

  // O is in the matrix unit's hands until then. `needed` must be the same in the whole warpgroup.
  __device__ __forceinline__ void decay_values(const tile::Decay& decay) {
    if (!decay.needed) return;
    ptx::wgmma_wait<0>();
    ptx::pin(r_o);
    decay.apply(r_o);
  }

  // A tile of which this warpgroup's rows see nothing.
  __device__ __forceinline__ void pass(bool takes_turn) {
    ptx::mbarrier_wait(&shared.k_full[k.at()], k.phase());
    leave_keys();
    if (takes_turn) begin_turn();
    if (takes_turn) end_turn();
    ptx::mbarrier_wait(&shared.v_full[v.at()], v.phase());
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
    if (kStagesOutput)
      owed = q.at();
    else
      release(&shared.q_empty[q.at()]);
    q.advance(C::kConsumers);
  }

  // Late, so that the copy engine has read it.
  __device__ __forceinline__ void settle() {
    if (!kStagesOutput || owed == C::kQueries) return;
    if (leader) {
      ptx::bulk_wait_read();
      ptx::mbarrier_arrive(&shared.q_empty[owed]);
    }
    owed = C::kQueries;
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
    prepare_columns(r_s, w, tile * C::kTileN, full);
  }

  // Scores of the columns from `key` on.
  template <int kCount>
  __device__ __forceinline__ void prepare_columns(float (&r_some)[kCount], const tile::Work& w, int key,
                                                  bool full) {
    if (full && !C::kShaped) return;
    const int thread = ptx::thread_afresh();
    const int row = w.row + row_of(thread), lane_column = 2 * (thread % 4);
    if constexpr (C::kShaped) {
      const ForwardParams& p = args.params;
      tile::shape(r_some, p.scale, p.softcap, p.alibi_slope(w.batch, w.head), row + w.q_offset, w.beyond, key,
                  lane_column);
    }
    if (!full) tile::hide<C::kMasksByBits>(r_some, w, row, key, lane_column);
  }

  // The scores of some of this thread's rows once more: for weights that fp32 could not hold. Eight keys at a
  // time, always in the first four registers, which then go around: unrolled, this code would lie as a hole
  // in the step's, which costs speed where it is never run.
  __device__ __forceinline__ void score_again(const bool (&rows)[2], const tile::Work& w, int tile,
                                              bool full) {
#pragma unroll 1
    for (int j = 0; j < C::kTileN / 8; ++j) {
      const int thread = ptx::thread_afresh();
      float r_again[4];
      const int key = tile * C::kTileN + 8 * j;
      tile::score_again<T, C::kDim>(r_again, args.params, w, args.key_heads.divide(w.head), shared.q[q.at()],
                                    thread % 128 / 32 * 16, key, thread % 32);
      prepare_columns(r_again, w, key, full);
#pragma unroll
      for (int c = 0; c < 4; ++c) r_again[c] = rows[c / 2] ? r_again[c] : r_s[c];
#pragma unroll
      for (int i = 0; i < C::kTileN / 2 - 4; ++i) r_s[i] = r_s[i + 4];
#pragma unroll
      for (int c = 0; c < 4; ++c) r_s[C::kTileN / 2 - 4 + c] = r_again[c];
    }
    // The copy engine may write the queries' buffer as soon as it is released.
    ptx::fence_async_shared();
    __syncwarp();
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
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_CONSUMER_H_
