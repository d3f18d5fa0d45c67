// A consumer warpgroup: 64 keys against all queries that see some of them, one piece of work after the other.
//
// One step, query tile j (keys are rows, so P and dS are A operands as they stand):
//   issue  dP = V dO(j)^T                   S = K Q(j)^T and dK(j - 1) run already
//   S done      P = exp2(S - lse)           under dP
//   dP done     dS = P (dP - D), rounded, also to shared memory for both warpgroups
//   issue  dV += P dO(j), dQ(j - 1) = dS(j - 1) K, dK += dS Q(j)
//   dQ done     to shared memory, while dK alone reads there; issue S of tile j + 1 and dP
//   then        dQ's piece on its way to the sums in memory
// dQ is a step late, so that no warpgroup waits for the other's dS at its tightest point: they drift apart by
// half a step, and one's exponentials run under the other's products.
//
// What the warps execute is the critical path, so nothing is waited for that a product could hide: S and dP
// read shared memory at its full rate, and a fence right behind the stores of dQ would wait for both of them.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_CONSUMER_H_
#define TILEWISE_CUDA_SM90_BACKWARD_CONSUMER_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mbarrier_warp.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/backward_config.cuh"
#include "cuda/sm90/backward_score.cuh"
#include "cuda/tile/clear.cuh"
#include "cuda/tile/product.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/store.cuh"

namespace tilewise::sm90 {

constexpr int kClearBarrier = 1;  // + warpgroup

template <typename C>
struct BackwardConsumer {
  using T = typename C::Element;
  using Walk = tile::QueryWalk<C::kOrdered>;
  static constexpr int kScores = C::kTileM / 2;  // fp32 registers of S or dP
  // Rounded weights beside what becomes dS and dP do not fit: dV goes before dP.
  static constexpr bool kEarlyValues = C::kShaped && C::kTight;
  // Row numbers are read while products are awaited.
  static constexpr bool kAhead = !C::kShaped && !C::kTight;

  const BackwardArgs& args;
  BackwardShared<C>& shared;
  const int group;  // warpgroup
  const int warp;   // of all consumers
  const int lane;
  Ring<1> kv;
  OddRing<C::kQStages> q;
  Ring<C::kOStages> dout;
  Ring<C::kScoreStages> ds, ds_before;  // next to write; next to multiply
  Ring<kWorkSlots> slot;
  const tile::KeyWork* steps;  // of the piece of work
  bool edge, full;             // of the tile that comes: rows to clear, nothing to hide
  // Low halves of descriptors, made while products are awaited.
  struct {
    uint32_t k, q, v, dout;
  } r_score;  // of the next S and dP
  struct {
    uint32_t dout, ds, k, q;
  } r_sum;                     // of the next dV, dQ and dK
  float2 r_rows[kScores / 4];  // a number of this lane's query rows
  float r_dk[C::kDim / 2], r_dv[C::kDim / 2];

  __device__ __forceinline__ void run() {
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::KeyWork& w = shared.work[slot.at()];
      if (w.batch < 0) break;
#pragma unroll
      for (int i = 0; i < C::kDim / 2; ++i) r_dk[i] = r_dv[i] = 0.0f;
      if (w.tile_first < w.tile_last) sweep(w);
      finish(w);
      __syncwarp();
      ptx::mbarrier_arrive_warp(&shared.work_empty[slot.at()], lane);
      slot.advance();
    }
    if (!C::kOrdered) ptx::bulk_wait();
  }

 private:
  __device__ __forceinline__ void release(ptx::Mbarrier* empty) { ptx::mbarrier_arrive_warp(empty, lane); }

  __device__ __forceinline__ void sweep(const tile::KeyWork& w) {
    steps = &w;
    Walk at(w, args.queries_per_key_head);
    Walk before = at;
    uint32_t r_p[kScores / 2], r_ds[kScores / 2];
    ptx::mbarrier_wait(&shared.k_full, kv.phase());
    const bool edge = w.see_first > w.key || w.see_last < w.key + C::kTileN;
    if (edge) clear(shared.k, w);
    {
      float r_s[kScores], r_dp[kScores];
      prepare_scores(at.tile, q, dout);
      issue_s(at, r_s);
      ptx::mbarrier_wait(&shared.v_full, kv.phase());
      if (edge) clear(shared.v, w);
      if (!kEarlyValues) issue_dp(at, r_dp);
      if (kAhead) read_rows(shared.weight_shift[q.at()]);
      ptx::wgmma_wait<kEarlyValues ? 0 : 1>();
      ptx::pin(r_s);
      take_scores(w, at, r_s, r_dp, r_p, r_ds);
    }
    if (at.left == 0) {
      last_step<true>(w, at, before, r_p, r_ds);
    } else {
      step<true>(w, at, before, r_p, r_ds);
#pragma unroll 1
      while (at.left > 0) step<false>(w, at, before, r_p, r_ds);
      last_step<false>(w, at, before, r_p, r_ds);
    }
    kv.advance();
  }

  // Keys that nobody sees, and queries that see no key of the tile: no product may meet them.
  __device__ __forceinline__ void clear(uint8_t* s_keys, const tile::KeyWork& w) {
    tile::clear_outside<C::kTileN, C::kDim>(s_keys, w.see_first - w.key, w.see_last - w.key,
                                            kClearBarrier + group);
  }
  __device__ __forceinline__ void clear_queries(uint8_t* s_rows, int tile) {
    const int row = tile * C::kTileM;
    tile::clear_outside<C::kTileM, C::kDim>(s_rows, steps->row_first - row, steps->row_last - row,
                                            kClearBarrier + group);
  }

  // From the weights of one tile to those of the next. kFirst: there is no tile before whose dQ is due.
  template <bool kFirst>
  __device__ __forceinline__ void step(const tile::KeyWork& w, Walk& at, Walk& before,
                                       uint32_t (&r_p)[kScores / 2], uint32_t (&r_ds)[kScores / 2]) {
    float r_dq[32], r_s[kScores], r_dp[kScores];
    if (!kEarlyValues) issue_dv(r_p);
    if (!kFirst) issue_dq(r_dq);
    issue_dk(r_ds);
    const Walk due = before;
    before = at;
    at.next(*steps, args.queries_per_key_head);
    const uint32_t stage = q.at();
    q.advance();
    {
      Ring<C::kOStages> next = dout;
      if (!kEarlyValues) next.advance();
      prepare_scores(at.tile, q, next);
    }
    ptx::wgmma_wait<1>();
    if (!kEarlyValues) leave_dout();
    if (!kFirst) {
      ptx::pin(r_dq);
      if (!C::kOrdered) put_queries(r_dq);
    }
    issue_s(at, r_s);
    // Ordered, the room of the tile before may have to wait for its turn.
    if (!kFirst && C::kOrdered) put_queries(r_dq);
    if (!kFirst && C::kDirect) add_queries(r_dq, due);
    if (C::kTight) ptx::wgmma_wait<1>();
    if (!kEarlyValues) issue_dp(at, r_dp);
    if (!kFirst && !C::kDirect) send_queries(due);
    if (kAhead) {
      ptx::wgmma_wait<2>();  // dK is done: its operand's registers are free
      read_rows(shared.weight_shift[q.at()]);
    }
    ptx::wgmma_wait<kEarlyValues ? 0 : 1>();
    ptx::pin(r_s);
    release(&shared.q_empty[stage]);
    take_scores(w, at, r_s, r_dp, r_p, r_ds);
  }

  template <bool kFirst>
  __device__ __forceinline__ void last_step(const tile::KeyWork& w, const Walk& at, const Walk& before,
                                            const uint32_t (&r_p)[kScores / 2],
                                            const uint32_t (&r_ds)[kScores / 2]) {
    float r_dq[32];
    if (!kEarlyValues) issue_dv(r_p);
    if (!kFirst) issue_dq(r_dq);
    issue_dk(r_ds);
    ptx::wgmma_wait<0>();
    ptx::pin(r_dk);
    ptx::pin(r_dv);
    if (!kEarlyValues) leave_dout();
    release(&shared.q_empty[q.at()]);
    q.advance();
    if (!kFirst) {
      ptx::pin(r_dq);
      give_queries(r_dq, before);
    }
    prepare_sums();
    issue_dq(r_dq);
    ptx::wgmma_wait<0>();
    ptx::pin(r_dq);
    release(&shared.k_empty);
    give_queries(r_dq, at);
  }

  // S is done and dP under way: both become the operands of dV, dK and dQ.
  __device__ __forceinline__ void take_scores(const tile::KeyWork& w, const Walk& at, float (&r_s)[kScores],
                                              float (&r_dp)[kScores], uint32_t (&r_p)[kScores / 2],
                                              uint32_t (&r_ds)[kScores / 2]) {
    weigh(w, at, r_s, r_p);
    if (kEarlyValues) {
      wait_dout(at);
      prepare_sums();
      issue_dv(r_p);
      ptx::wgmma_wait<0>();
      ptx::pin(r_dv);
      issue_dp(at, r_dp);
    }
    const float* s_delta = shared.delta[q.at()] + 2 * (lane % 4);
    prepare_sums();
    if (kAhead) read_rows(shared.delta[q.at()]);
    ptx::wgmma_wait<0>();
    ptx::pin(r_dp);
    if (kEarlyValues) leave_dout();
    if (at.left == 0) release(&shared.v_empty);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      if (C::kTight && j % 4 == 0) ptx::in_order();
      const float2 delta = kAhead ? r_rows[j] : *reinterpret_cast<const float2*>(s_delta + 8 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        r_dp[4 * j + i] = r_s[4 * j + i] * (r_dp[4 * j + i] - (i % 2 ? delta.y : delta.x));
#pragma unroll
      for (int i = 2 * j; i < 2 * j + 2; ++i) {
        if (!C::kShaped) r_p[i] = ptx::pack<T>(r_s[2 * i], r_s[2 * i + 1]);
        r_ds[i] = ptx::pack<T>(r_dp[2 * i], r_dp[2 * i + 1]);
      }
    }
    hand_over(r_ds);
  }

  __device__ __forceinline__ void issue_dv(const uint32_t (&r_p)[kScores / 2]) {
    tile::issue_values<T, C::kTileM, C::kDim>(r_dv, r_p, r_sum.dout, true);
  }

  __device__ __forceinline__ void issue_dk(const uint32_t (&r_ds)[kScores / 2]) {
    tile::issue_values<T, C::kTileM, C::kDim>(r_dk, r_ds, r_sum.q, true);
  }

  __device__ __forceinline__ void wait_dout(const Walk& at) {
    ptx::mbarrier_wait(&shared.dout_full[dout.at()], dout.phase());
    if (edge) clear_queries(shared.dout[dout.at()], at.tile);
  }

  __device__ __forceinline__ void leave_dout() {
    release(&shared.dout_empty[dout.at()]);
    dout.advance();
  }

  __device__ __forceinline__ void issue_dp(const Walk& at, float (&r_dp)[kScores]) {
    if (!kEarlyValues) wait_dout(at);
    tile::issue_scores<T, C::kTileM, C::kDim, C::kTileN>(r_dp, r_score.v, r_score.dout);
  }

  // What the next scores need: whether rows of the tile are to be cleared or scores to be hidden,
  // descriptors.
  __device__ __forceinline__ void prepare_scores(int tile, OddRing<C::kQStages> q_at,
                                                 Ring<C::kOStages> dout_at) {
    edge = steps->row_first > tile * C::kTileM || steps->row_last < (tile + 1) * C::kTileM;
    full = steps->is_full(tile);
    r_score.k = ptx::uniform(C::KTile::k_major(shared.k + group * 64 * 128));
    r_score.q = ptx::uniform(C::QTile::k_major(shared.q[q_at.at()]));
    r_score.v = ptx::uniform(C::KTile::k_major(shared.v + group * 64 * 128));
    r_score.dout = ptx::uniform(C::QTile::k_major(shared.dout[dout_at.at()]));
  }

  // Descriptors of the next dV, dQ and dK.
  __device__ __forceinline__ void prepare_sums() {
    r_sum.dout = ptx::uniform(C::QTile::mn_major(shared.dout[dout.at()]));
    r_sum.ds = ptx::uniform(C::ScoreTile::mn_major(shared.ds[ds_before.at()] +
                                                   (C::kByRows ? group * C::ScoreTile::kPanelBytes : 0)));
    r_sum.k = ptx::uniform(C::KTile::mn_major(shared.k + (C::kByRows ? 0 : group * C::KTile::kPanelBytes)));
    r_sum.q = ptx::uniform(C::QTile::mn_major(shared.q[q.at()]));
  }

  __device__ __forceinline__ void issue_s(const Walk& at, float (&r_s)[kScores]) {
    ptx::mbarrier_wait(&shared.q_full[q.at()], q.phase());
    if (edge) clear_queries(shared.q[q.at()], at.tile);
    tile::issue_scores<T, C::kTileM, C::kDim, C::kTileN>(r_s, r_score.k, r_score.q);
  }

  // dQ of the tile before, from the dS of both warpgroups.
  __device__ __forceinline__ void issue_dq(float (&r_dq)[32]) {
    ptx::mbarrier_wait(&shared.ds_full[ds_before.at()], ds_before.phase());
    tile::issue_query_gradient<T, 64, C::kTileN, C::kTileM, C::kDim>(r_dq, r_sum.ds, r_sum.k);
  }

  __device__ __forceinline__ void read_rows(const float* s_rows) {
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j)
      r_rows[j] = *reinterpret_cast<const float2*>(s_rows + 2 * (lane % 4) + 8 * j);
  }

  // Scores become weights, and shaped ones, which are then times the softcap's derivative, rounded too.
  __device__ __forceinline__ void weigh(const tile::KeyWork& w, const Walk& at, float (&r_s)[kScores],
                                        uint32_t (&r_p)[kScores / 2]) {
    const int thread = C::kTight ? ptx::thread_afresh() - 128 : 32 * warp + lane;
    const int row = at.tile * C::kTileM, key = w.key + thread / 32 * 16 + thread % 32 / 4;
    const int column = 2 * (thread % 4);
    const float* s_shift = shared.weight_shift[q.at()] + column;
    if constexpr (C::kShaped) {
      weigh_shaped<T>(r_s, r_p, args, w, at.head, row, key, column, s_shift, [&](int j, float4 weights) {
        r_s[4 * j] = weights.x;
        r_s[4 * j + 1] = weights.y;
        r_s[4 * j + 2] = weights.z;
        r_s[4 * j + 3] = weights.w;
      });
    } else {
      tile::weigh_keys(r_s, args.scale_log2, [&](int j) {
        return kAhead ? r_rows[j] : *reinterpret_cast<const float2*>(s_shift + 8 * j);
      });
      if (!full) tile::hide_keys(r_s, w, row, key, column);
    }
  }

  // dS to shared memory, [key, query].
  __device__ __forceinline__ void hand_over(const uint32_t (&r_ds)[kScores / 2]) {
    ptx::mbarrier_wait(&shared.ds_empty[ds.at()], ds.phase() ^ 1);
    const int thread = C::kTight ? ptx::thread_afresh() - 128 : 32 * warp + lane;
    put_ds<typename C::ScoreTile>(shared.ds[ds.at()], r_ds, thread / 32 * 16 + thread % 16, thread % 32 / 16);
    release(&shared.ds_full[ds.at()]);
    ds.advance();
  }

  // Where this warp's piece of dQ is within the tile, and how many columns it has.
  __device__ __forceinline__ int columns() const {
    return C::kLastColumns < 64 && group != 0 ? C::kLastColumns : 64;
  }
  __device__ __forceinline__ int piece() const { return group * C::kGroupFloats + warp % 4 * 16 * columns(); }
  __device__ __forceinline__ float* sums(const Walk& of) const {
    const int64_t row = of.head * args.scratch_rows.rows + steps->scratch_row;
    return args.g_dq + row * C::kDim + static_cast<int64_t>(of.tile) * C::kTileFloats + piece();
  }

  // Leaves the tile of dS. The fragment of dQ to shared memory, while products that read little of it run.
  __device__ __forceinline__ void put_queries(const float (&r_dq)[32]) {
    const Ring<C::kSumStages> dq = {ds_before.count};
    release(&shared.ds_empty[ds_before.at()]);
    ds_before.advance();
    if (C::kDirect || args.g_dq == nullptr) return;
    if (C::kOrdered)
      ptx::mbarrier_wait(&shared.dq_empty[dq.at()], dq.phase() ^ 1);
    else if (lane == 0)
      ptx::bulk_wait_read();
    __syncwarp();
    float* s_dq = shared.dq[dq.at()] + piece() + 4 * lane;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (8 * i >= columns()) continue;
      *reinterpret_cast<float4*>(s_dq + 128 * i) =
          make_float4(r_dq[4 * i], r_dq[4 * i + 1], r_dq[4 * i + 2], r_dq[4 * i + 3]);
    }
  }

  // From there to the sums in memory or, ordered, to the storer. The fence waits for what put_queries wrote.
  __device__ __forceinline__ void send_queries(const Walk& of) {
    if (args.g_dq == nullptr) return;
    ptx::fence_async_shared();
    __syncwarp();
    if (C::kOrdered) {
      release(&shared.dq_full[0]);
    } else if (lane == 0) {
      ptx::bulk_add(sums(of), shared.dq[0] + piece(), 64 * columns());
      ptx::bulk_commit();
    }
  }

  // From registers to the sums.
  __device__ __forceinline__ void add_queries(const float (&r_dq)[32], const Walk& of) {
    if (args.g_dq == nullptr) return;
    add_fragment(sums(of) + 4 * lane, r_dq);
  }

  __device__ __forceinline__ void give_queries(const float (&r_dq)[32], const Walk& of) {
    put_queries(r_dq);
    if (C::kDirect)
      add_queries(r_dq, of);
    else
      send_queries(of);
  }

  __device__ __forceinline__ void finish(const tile::KeyWork& w) {
    write(w, r_dv, args.params.dv, args.wide_dv, static_cast<int>(args.params.head_dim_v), 1.0f);
    write(w, r_dk, args.params.dk, args.wide_dk, static_cast<int>(args.params.head_dim), args.params.scale);
  }

  __device__ __forceinline__ void write(const tile::KeyWork& w, const float (&r)[C::kDim / 2],
                                        const RowTensor& to, int32_t wide, int dim, float scale) {
    if (to.data == nullptr) return;
    const int first = w.key + 16 * warp + lane / 4;
    const int64_t at = to.at(w.batch, w.kv_begin + first, w.head);
    const int columns[2] = {first < w.rows_kv ? dim : 0, first + 8 < w.rows_kv ? dim : 0};
    tile::store_gradient<T>(r, scale, to, at, wide, args.params.accumulate, columns, lane);
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_CONSUMER_H_
