// A consumer warpgroup of a kernel for wide heads: 64 keys against all queries that see some of them, one
// piece of work after the other. The two have different parts, and meet over P and dS of each query tile j:
//
//   values  issue dV += P dO(j), S = K Q(j + 1)^T, dQ(j - 1)
//           S done        P = exp2(S - lse), to the other in fp32
//           dQ done       its sums go to memory
//   keys    issue dK += dS Q(j), dQ(j - 1), dP = V dO(j + 1)^T
//           dQ done       its sums go to memory
//           dP, P done    dS = P (dP - D), rounded, to shared memory
// A step begins and ends with P and dS in registers. One's exponentials run under the other's products, and
// what they need of shared memory is read while products run. dQ = dS K is a step late, so that nobody waits
// for dS; it goes in panels of 64 columns from registers straight to its fp32 sums in memory: no room for it
// is left. A block makes half of dQ's columns for the 128 keys of its pair, a panel or half of one a
// warpgroup, and needs the other's dS.
//
// Orders of a pair. The copy engine reads what stmatrix wrote behind each lane's proxy fence and __syncwarp;
// wgmma reads what the peer's copy engine wrote behind the mbarrier that counted its bytes. Room comes back
// by arrivals in both blocks behind the wgmma that read it.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_WIDE_CONSUMER_H_
#define TILEWISE_CUDA_SM90_BACKWARD_WIDE_CONSUMER_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mbarrier_warp.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/backward_score.cuh"
#include "cuda/sm90/backward_wide_config.cuh"
#include "cuda/tile/clear.cuh"
#include "cuda/tile/product.cuh"
#include "cuda/tile/store.cuh"

namespace tilewise::sm90 {

constexpr int kWideClearBarrier = 1;  // + warpgroup

template <typename C, bool kValues>
struct WideConsumer {
  using T = typename C::Element;
  using Walk = tile::QueryWalk<C::kOrdered>;
  static constexpr int kGroup = kValues ? 0 : 1;
  static constexpr int kScores = C::kTileM / 2;  // fp32 registers of S or dP
  static constexpr int kColumns = kValues ? C::kDimV : C::kDim;
  // One's exponentials are what the other waits for: its dQ stands behind them.
  static constexpr int kPanelColumns = C::kSharedPanel && !kValues ? 32 : 64;
  static constexpr int kBehind = kValues ? 1 : 0;

  const BackwardArgs& args;
  WideShared<C>& shared;
  const int warp;  // of the warpgroup
  const int lane;
  const int rank;  // in a pair
  Ring<1> kv, p;
  RingOf<C::kQStages> q;
  Ring<C::kOStages> dout;
  Ring<C::kScoreStages> ds, ds_before;  // next to write; next to multiply
  Ring<kTurnStages> turn;               // ordered
  Ring<kWorkSlots> slot;
  const tile::KeyWork* steps;  // of the piece of work
  float r_sum[kColumns / 2];

  __device__ __forceinline__ void run() {
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::KeyWork& w = shared.work[slot.at()];
      if (w.batch < 0) break;
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) r_sum[i] = 0.0f;
      if (w.tile_first < w.tile_last) sweep(w);
      finish(w);
      __syncwarp();
      ptx::mbarrier_arrive_warp(&shared.work_empty[slot.at()], lane);
      slot.advance();
    }
  }

 private:
  // The empty barriers count the warps that read a buffer: kBoth, in both blocks.
  template <bool kBoth = false>
  __device__ __forceinline__ void release(ptx::Mbarrier* empty) {
    ptx::mbarrier_arrive_warp(empty, lane);
    if (kBoth && (ptx::kWarpArrivals == 32 || lane == 0)) ptx::cluster_arrive(at_peer(empty));
  }

  __device__ __forceinline__ void sweep(const tile::KeyWork& w) {
    steps = &w;
    Walk at(w, args.queries_per_key_head);
    ptx::mbarrier_wait(&shared.k_full, kv.phase());
    clear<C::kDim>(shared.k, w, rank);
    if (!kValues) {
      ptx::mbarrier_wait(&shared.v_full, kv.phase());
      clear<C::kDimV>(shared.v, w, rank);
    }
    uint32_t r_a[kScores / 2];
    {
      float r_s[kScores];
      issue_first(at, r_s);
      take_first<0>(w, at, r_s, r_a);
    }
    ptx::mbarrier_wait(&shared.peer_k_full, kv.phase());
    clear<2 * tile::kPanelColumns>(shared.peer_k[0], w, 1 - rank);
    Walk due = at;
    if (at.left == 0) {
      last_step<false>(at, due, r_a);
    } else {
      step<false>(w, at, due, r_a);
#pragma unroll 1
      while (at.left > 0) step<true>(w, at, due, r_a);
      last_step<true>(at, due, r_a);
    }
    kv.advance();
  }

  // Keys that nobody sees, and queries that see no key of the tile: no product may meet them.
  template <int kWidth>
  __device__ __forceinline__ void clear(uint8_t* s_keys, const tile::KeyWork& w, int of_rank) {
    const int first = w.see_first - w.key - of_rank * C::kBlockKeys;
    const int last = w.see_last - w.key - of_rank * C::kBlockKeys;
    if (first <= 0 && last >= C::kBlockKeys) return;
    tile::clear_outside<C::kBlockKeys, kWidth>(s_keys, first, last, kWideClearBarrier + kGroup);
  }
  template <int kWidth>
  __device__ __forceinline__ void clear_queries(uint8_t* s_rows, int tile) {
    const int row = tile * C::kTileM;
    if (steps->row_first <= row && steps->row_last >= row + C::kTileM) return;
    tile::clear_outside<C::kTileM, kWidth>(s_rows, steps->row_first - row, steps->row_last - row,
                                           kWideClearBarrier + kGroup);
  }

  // S of a query tile, or dP.
  __device__ __forceinline__ void issue_first(const Walk& at, float (&r_s)[kScores]) {
    if (kValues) {
      wait_queries(at);
      tile::issue_scores<T, C::kTileM, C::kDim>(r_s, ptx::uniform(C::KTile::k_major(shared.k)),
                                                ptx::uniform(C::QTile::k_major(shared.q[q.at()])));
    } else {
      wait_dout(at);
      tile::issue_scores<T, C::kTileM, C::kDimV>(r_s, ptx::uniform(C::VTile::k_major(shared.v)),
                                                 ptx::uniform(C::OTile::k_major(shared.dout[dout.at()])));
    }
  }

  // Takes them where kPending groups of products may still run.
  template <int kPending>
  __device__ __forceinline__ void take_first(const tile::KeyWork& w, const Walk& at, float (&r_s)[kScores],
                                             uint32_t (&r_a)[kScores / 2]) {
    float2 r_rows[kScores / 4];
    if constexpr (kValues) {
      read_rows(r_rows, shared.weight_shift[q.at()], lane);
      ptx::wgmma_wait<kPending>();
      ptx::pin(r_s);
      weigh(w, at, r_s, r_rows, r_a);
      release(&shared.q_empty[q.at()]);
      q.advance();
    } else {
      wait_queries(at);
      read_rows(r_rows, shared.delta[q.at()], lane);
      float r_p[kScores];
      take_weights(r_p);
      ptx::wgmma_wait<kPending>();
      ptx::pin(r_s);
      release(&shared.dout_empty[dout.at()]);
      dout.advance();
      differentiate(r_s, r_rows, r_p, r_a);
    }
  }

  // dV of a query tile, or dK.
  __device__ __forceinline__ void issue_sum(const Walk& at, const uint32_t (&r_a)[kScores / 2]) {
    if (kValues) {
      wait_dout(at);
      tile::issue_values<T, C::kTileM, kColumns>(
          r_sum, r_a, ptx::uniform(C::OTile::mn_major(shared.dout[dout.at()])), true);
    } else {
      tile::issue_values<T, C::kTileM, kColumns>(r_sum, r_a,
                                                 ptx::uniform(C::QTile::mn_major(shared.q[q.at()])), true);
    }
  }
  __device__ __forceinline__ void leave_sum() {
    if (kValues) {
      release(&shared.dout_empty[dout.at()]);
      dout.advance();
    } else {
      release(&shared.q_empty[q.at()]);
      q.advance();
    }
  }

  // From dV's, or dK's, operand of one tile to that of the next. kDue: with dQ of the tile before.
  template <bool kDue>
  __device__ __forceinline__ void step(const tile::KeyWork& w, Walk& at, Walk& due,
                                       uint32_t (&r_a)[kScores / 2]) {
    constexpr int kLate = kDue ? 1 : 0;  // groups of products
    float r_s[kScores], r_dq[kPanelColumns / 2];
    issue_sum(at, r_a);
    const Walk next_due = at;
    at.next(*steps, args.queries_per_key_head);
    if constexpr (kValues) {
      issue_first(at, r_s);
      if constexpr (kDue) issue_dq(r_dq);
      ptx::wgmma_wait<1 + kLate>();
      leave_sum();
    } else {
      if constexpr (kDue) issue_dq(r_dq);
      // Room for further queries before the wait for dO, which may still have to come.
      ptx::wgmma_wait<kLate>();
      leave_sum();
      issue_first(at, r_s);
      ptx::wgmma_wait<1>();
      if constexpr (kDue) finish_dq(r_dq, due);
    }
    take_first<kDue ? kBehind : 0>(w, at, r_s, r_a);
    if constexpr (kDue && kValues) {
      ptx::wgmma_wait<0>();
      finish_dq(r_dq, due);
    }
    ptx::pin(r_sum);
    due = next_due;
  }

  template <bool kDue>
  __device__ __forceinline__ void last_step(const Walk& at, const Walk& due,
                                            const uint32_t (&r_a)[kScores / 2]) {
    float r_dq[kPanelColumns / 2];
    issue_sum(at, r_a);
    if (!kValues) release(&shared.v_empty);
    if constexpr (kDue) issue_dq(r_dq);
    ptx::wgmma_wait<kDue ? 1 : 0>();
    leave_sum();
    ptx::wgmma_wait<0>();
    ptx::pin(r_sum);
    if constexpr (kDue) finish_dq(r_dq, due);
    float r_last[kPanelColumns / 2];
    issue_dq(r_last);
    ptx::wgmma_wait<0>();
    release(&shared.k_empty);
    finish_dq(r_last, at);
  }

  __device__ __forceinline__ void wait_queries(const Walk& at) {
    ptx::mbarrier_wait(&shared.q_full[q.at()], q.phase());
    clear_queries<C::kDim>(shared.q[q.at()], at.tile);
  }
  __device__ __forceinline__ void wait_dout(const Walk& at) {
    ptx::mbarrier_wait(&shared.dout_full[dout.at()], dout.phase());
    clear_queries<C::kDimV>(shared.dout[dout.at()], at.tile);
  }

  // Values: scores become weights, in fp32 for the other warpgroup (times the softcap's derivative), rounded
  // for dV.
  __device__ __forceinline__ void weigh(const tile::KeyWork& w, const Walk& at, float (&r_s)[kScores],
                                        const float2 (&r_shift)[kScores / 4], uint32_t (&r_p)[kScores / 2]) {
    const int row = at.tile * C::kTileM, key = first_key(w), column = 2 * (lane % 4);
    float4* s_p = &shared.p[0][threadIdx.x % 128];
    if constexpr (C::kShaped) {
      ptx::mbarrier_wait(&shared.p_empty, p.phase() ^ 1);
      weigh_shaped<T>(r_s, r_p, args, w, at.head, row, key, column, shared.weight_shift[q.at()] + column,
                      [&](int j, float4 weights) { s_p[128 * j] = weights; });
      hand_over_weights();
    } else {
      tile::weigh_keys(r_s, args.scale_log2, [&](int j) { return r_shift[j]; });
      if (!steps->is_full(at.tile)) tile::hide_keys(r_s, w, row, key, column);
      ptx::mbarrier_wait(&shared.p_empty, p.phase() ^ 1);
#pragma unroll
      for (int i = 0; i < kScores / 4; ++i)
        s_p[128 * i] = make_float4(r_s[4 * i], r_s[4 * i + 1], r_s[4 * i + 2], r_s[4 * i + 3]);
      hand_over_weights();
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) r_p[i] = ptx::pack<T>(r_s[2 * i], r_s[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void hand_over_weights() {
    __syncwarp();
    release(&shared.p_full);
    p.advance();
  }

  __device__ __forceinline__ void take_weights(float (&r_p)[kScores]) {
    ptx::mbarrier_wait(&shared.p_full, p.phase());
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float4 weight = shared.p[j][threadIdx.x % 128];
      r_p[4 * j] = weight.x;
      r_p[4 * j + 1] = weight.y;
      r_p[4 * j + 2] = weight.z;
      r_p[4 * j + 3] = weight.w;
    }
    __syncwarp();
    release(&shared.p_empty);
    p.advance();
  }

  // Keys: dP becomes dS, rounded for dK, and to shared memory, [key, query], for dQ.
  __device__ __forceinline__ void differentiate(const float (&r_dp)[kScores],
                                                const float2 (&r_delta)[kScores / 4],
                                                const float (&r_p)[kScores], uint32_t (&r_ds)[kScores / 2]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float2 delta = r_delta[i / 2];
      r_ds[i] =
          ptx::pack<T>(r_p[2 * i] * (r_dp[2 * i] - delta.x), r_p[2 * i + 1] * (r_dp[2 * i + 1] - delta.y));
    }
    ptx::mbarrier_wait(&shared.ds_empty[ds.at()], ds.phase() ^ 1);
    put_ds<typename C::ScoreTile>(shared.ds[ds.at()], r_ds, 16 * warp + lane % 16, lane / 16);
    release(&shared.ds_full[ds.at()]);
    send_ds();
    ds.advance();
  }

  // This warp's rows of dS, which lie in one piece, to the peer.
  __device__ __forceinline__ void send_ds() {
    constexpr int kPiece = C::ScoreTile::kBytes / 4;
    if (lane != 0) return;
    if (warp == 0) ptx::mbarrier_arrive_expect(&shared.peer_ds_full[ds.at()], C::ScoreTile::kBytes);
    ptx::cluster_copy(at_peer(shared.peer_ds[ds.at()] + warp * kPiece), shared.ds[ds.at()] + warp * kPiece,
                      kPiece, at_peer(&shared.peer_ds_full[ds.at()]));
  }

  __device__ __forceinline__ void issue_dq(float (&r_dq)[kPanelColumns / 2]) {
    ptx::mbarrier_wait(&shared.ds_full[ds_before.at()], ds_before.phase());
    const uint32_t ds_here = ptx::uniform(C::ScoreTile::mn_major(shared.ds[ds_before.at()]));
    ptx::mbarrier_wait(&shared.peer_ds_full[ds_before.at()], ds_before.phase());
    const uint32_t ds_there = ptx::uniform(C::ScoreTile::mn_major(shared.peer_ds[ds_before.at()]));
    const uint32_t k_there = ptx::uniform(C::KTile::mn_major(shared.peer_k[kGroup] + 2 * first_column()));
    const uint32_t k_here =
        ptx::uniform(C::KTile::mn_major(shared.k + panel() * C::KTile::kPanelBytes + 2 * first_column()));
    tile::issue_query_gradient<T, kPanelColumns, C::kBlockKeys, C::kTileM, C::kDim>(r_dq, {ds_here, ds_there},
                                                                                    {k_here, k_there});
  }

  // This warpgroup's panel of K's columns, and of dQ's; of a shared one its first column.
  __device__ __forceinline__ int panel() const { return panel_in_pair<C>(kGroup, rank); }
  __device__ __forceinline__ int first_column() const {
    return kPanelColumns < 64 ? kPanelColumns * rank : 0;
  }

  __device__ __forceinline__ void finish_dq(float (&r_dq)[kPanelColumns / 2], const Walk& of) {
    leave_ds();
    await_turn();
    ptx::pin(r_dq);
    add_queries(r_dq, of);
    leave_turn();
  }

  __device__ __forceinline__ void leave_ds() {
    release<true>(&shared.ds_empty[ds_before.at()]);
    ds_before.advance();
  }

  // Ordered, a tile of dQ is added to between these two.
  __device__ __forceinline__ void await_turn() {
    if (C::kOrdered && args.g_dq) ptx::mbarrier_wait(&shared.turn[turn.at()], turn.phase());
  }
  __device__ __forceinline__ void leave_turn() {
    if (!C::kOrdered || args.g_dq == nullptr) return;
    __syncwarp();
    release(&shared.added[turn.at()]);
    turn.advance();
  }

  __device__ __forceinline__ void add_queries(const float (&r_dq)[kPanelColumns / 2], const Walk& of) {
    if (args.g_dq == nullptr) return;
    const int64_t row = of.head * args.scratch_rows.rows + steps->scratch_row + of.tile * C::kTileM;
    const int piece = 4 * panel() + warp;
    float* g_sums =
        args.g_dq + row * C::kDim + piece * (C::kGroupFloats / 4) + 16 * first_column() + 4 * lane;
    const bool first = C::kOrdered && steps->tiles_before<C::kTileM, C::kTileN>(of.tile) == 0;
    first ? store_fragment(g_sums, r_dq) : add_fragment(g_sums, r_dq);
  }

  // Of this lane's fragments; the second row is 8 further.
  __device__ __forceinline__ int first_key(const tile::KeyWork& w) const {
    return w.key + rank * C::kBlockKeys + 16 * warp + lane / 4;
  }

  __device__ __forceinline__ void finish(const tile::KeyWork& w) {
    const BackwardParams& params = args.params;
    const RowTensor& to = kValues ? params.dv : params.dk;
    if (to.data == nullptr) return;
    const int dim = static_cast<int>(kValues ? params.head_dim_v : params.head_dim);
    const int first = first_key(w);
    const int64_t at = to.at(w.batch, w.kv_begin + first, w.head);
    const int columns[2] = {first < w.rows_kv ? dim : 0, first + 8 < w.rows_kv ? dim : 0};
    tile::store_gradient<T>(r_sum, kValues ? 1.0f : params.scale, to, at,
                            (kValues ? args.wide_dv : args.wide_dk) != 0, params.accumulate, columns, lane);
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_WIDE_CONSUMER_H_
