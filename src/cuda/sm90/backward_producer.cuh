// The producer warpgroup: one thread fills the buffers of K, V, Q and dO, one warp or two bring the numbers
// of each query row, a thread of the last hands out work.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_PRODUCER_H_
#define TILEWISE_CUDA_SM90_BACKWARD_PRODUCER_H_

#include "core/softmax.h"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier_warp.cuh"
#include "cuda/sm90/backward_args.cuh"
#include "cuda/sm90/backward_wide_config.cuh"
#include "cuda/sm90/load_tile.cuh"
#include "cuda/sm90/tickets.cuh"

namespace tilewise::sm90 {

// A ticket takes about as long to come as two steps.
constexpr int kQueryTilesOfNotice = 3;

// One thread that hands out work. Of a pair the first block draws for both.
template <typename C>
struct Scheduler {
  const BackwardArgs& args;
  SharedOf<C>& shared;
  Ring<kWorkSlots> slot;
  uint32_t notices = 0;
  Ring<1> ticket;  // pair

  __device__ __forceinline__ void run() {
    uint32_t index = first();
    while (index < static_cast<uint32_t>(args.order.total)) {
      int batch, head, tile_key;
      args.order.find(index, batch, head, tile_key);
      // A packed sequence that is longer than the plan's bound has further tiles. Ordered, they wait for all
      // before them, which must have been handed out: the last piece takes them all.
      const bool last = tile_key == args.order.tiles_m - 1;
      while (const tile::KeyWork* work = publish(batch, head, tile_key, index)) {
        if (C::kOrdered && !last) break;
        tile_key += C::kOrdered ? 1 : args.order.tiles_m;
        if (tile_key * C::kTileN >= work->rows_kv) break;
      }
      index = next(index);
    }
    ptx::grid_release();
    ptx::mbarrier_wait(&shared.work_empty[slot.at()], slot.phase() ^ 1);
    shared.work[slot.at()].batch = -1;
    ptx::mbarrier_arrive(&shared.work_full[slot.at()]);
    if (rank_in_pair<C>() == 0) leave_tickets(args.control, C::kBlocks);
  }

 private:
  // Pairs draw the first piece too: a piece that waits for another's turn then never waits for blocks that
  // have not started, however many pairs the device has room for at once.
  __device__ __forceinline__ uint32_t first() {
    return C::kBlocks == 1 || args.control == nullptr ? blockIdx.x / C::kBlocks : next(0);
  }
  __device__ __forceinline__ uint32_t next(uint32_t index) {
    if constexpr (C::kBlocks == 1) {
      return draw_ticket(args.control, index);
    } else if (rank_in_pair<C>() == 0) {
      index = args.control ? atomicAdd(args.control, 1) : index + gridDim.x / C::kBlocks;
      ptx::mbarrier_wait(&shared.ticket_empty, ticket.phase() ^ 1);
      ptx::cluster_send(at_peer(&shared.ticket), index, at_peer(&shared.ticket_full));
    } else {
      ptx::mbarrier_arrive_expect(&shared.ticket_full, sizeof(shared.ticket));
      ptx::cluster_wait(&shared.ticket_full, ticket.phase());
      index = *static_cast<volatile uint32_t*>(&shared.ticket);
      ptx::cluster_arrive(at_peer(&shared.ticket_empty));
    }
    ticket.advance();
    return index;
  }

  // The piece of work as the others see it; null where there is none.
  __device__ __forceinline__ const tile::KeyWork* publish(int batch, int head, int tile_key, uint32_t index) {
    ptx::mbarrier_wait(&shared.work_empty[slot.at()], slot.phase() ^ 1);
    tile::KeyWork* work = &shared.work[slot.at()];
    if (!tile::make_key_work<C::kTileM, C::kTileN>(*work, args.params, batch, head, tile_key)) return nullptr;
    work->scratch_row =
        static_cast<int32_t>(args.scratch_rows.begin<C::kTileM>(args.params, batch, work->q_begin) +
                             head * args.queries_per_key_head * args.scratch_rows.rows);
    work->tile_step = args.wave == 0 || index / args.wave % 2 != 0 ? 1 : -1;
    ptx::mbarrier_arrive(&shared.work_full[slot.at()]);
    slot.advance();
    // A ticket drawn early is work that nobody else can take.
    ptx::mbarrier_wait(&shared.nearly_done, notices++ & 1);
    return work;
  }
};

// One thread that fills the buffers of K, V, Q and dO.
template <typename C>
struct BackwardProducer {
  const BackwardArgs& args;
  SharedOf<C>& shared;
  Ring<1> kv;
  OddRing<C::kQStages> q;
  Ring<C::kOStages> dout;
  Ring<kWorkSlots> slot;

  __device__ __forceinline__ void run() {
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::KeyWork& w = shared.work[slot.at()];
      if (w.batch < 0) return;
      if (w.tile_first < w.tile_last)
        load(w);
      else
        ptx::mbarrier_arrive(&shared.nearly_done);
      ptx::mbarrier_arrive(&shared.work_empty[slot.at()]);
      slot.advance();
    }
  }

 private:
  __device__ __forceinline__ void load(const tile::KeyWork& w) {
    ptx::mbarrier_wait(&shared.k_empty, kv.phase() ^ 1);
    const int key = w.kv_begin + w.key + C::kBlockKeys * rank_in_pair<C>();
    load_tile<typename C::KTile>(shared.k, args.k, &shared.k_full, ptx::CacheHint::normal, key, w.head,
                                 w.batch);
    tile::QueryWalk<C::kOrdered> at(w, args.queries_per_key_head);
    const int notice = min(at.left, kQueryTilesOfNotice - 1);
    for (bool first = true;; first = false) {
      const int row = w.q_begin + at.tile * C::kTileM, head = w.head * args.queries_per_key_head + at.head;
      if (at.left == notice) ptx::mbarrier_arrive(&shared.nearly_done);
      ptx::mbarrier_wait(&shared.q_empty[q.at()], q.phase() ^ 1);
      load_tile<typename C::QTile>(shared.q[q.at()], args.q, &shared.q_full[q.at()],
                                   ptx::CacheHint::evict_last, row, head, w.batch);
      q.advance();
      if (first) {
        ptx::mbarrier_wait(&shared.v_empty, kv.phase() ^ 1);
        load_tile<typename C::VTile>(shared.v, args.v, &shared.v_full, ptx::CacheHint::normal, key, w.head,
                                     w.batch);
      }
      ptx::mbarrier_wait(&shared.dout_empty[dout.at()], dout.phase() ^ 1);
      load_tile<typename C::OTile>(shared.dout[dout.at()], args.dout, &shared.dout_full[dout.at()],
                                   ptx::CacheHint::evict_last, row, head, w.batch);
      dout.advance();
      if constexpr (C::kBlocks == 2)
        if (first) load_peer_keys(w);
      if (at.left == 0) break;
      at.next(w, args.queries_per_key_head);
    }
    kv.advance();
  }

  // The columns of the peer's keys that this block's part of dQ needs; their room is free when K's is.
  __device__ __forceinline__ void load_peer_keys(const tile::KeyWork& w) {
    const int rank = rank_in_pair<C>();
    ptx::mbarrier_arrive_expect(&shared.peer_k_full, sizeof(shared.peer_k));
#pragma unroll
    for (int i = 0; i < 2; ++i)
      ptx::tma_load(shared.peer_k[i], &args.k.map, &shared.peer_k_full, ptx::CacheHint::normal,
                    panel_in_pair<C>(i, rank) * tile::kPanelColumns,
                    w.kv_begin + w.key + C::kBlockKeys * (1 - rank), w.head * args.k.head_step,
                    w.batch * args.k.batch_step);
  }
};

// Follows the same work and brings lse and D of every row. Rows that see no key of the tile, and rows without
// any weight, get P = 0. No row comes before the kernel before has ended, so nothing is added to dQ either.
template <typename C>
struct RowReader {
  static constexpr int kStep = 32 * C::kRowWarps, kRows = C::kTileM / kStep;  // of a lane

  const BackwardArgs& args;
  SharedOf<C>& shared;
  const int first;  // row of this lane
  OddRing<C::kQStages> q;
  Ring<kWorkSlots> slot;

  __device__ __forceinline__ void run() {
    ptx::grid_wait();
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::KeyWork& w = shared.work[slot.at()];
      if (w.batch < 0) return;
#pragma unroll 1
      for (tile::QueryWalk<C::kOrdered> at(w, args.queries_per_key_head); at.left >= 0;
           at.next(w, args.queries_per_key_head))
        bring(w, ptx::afresh(at.head), ptx::afresh(at.tile));
      __syncwarp();
      ptx::mbarrier_arrive_warp(&shared.work_empty[slot.at()], ptx::thread_afresh() % 32);
      slot.advance();
    }
  }

 private:
  __device__ __forceinline__ void bring(const tile::KeyWork& w, int head, int tile) {
    if constexpr (C::kRowWarps == 1)
      bring_in_turn(w, head, tile);
    else
      bring_together(w, head, tile);
    __syncwarp();
    ptx::mbarrier_arrive_warp(&shared.q_full[q.at()], ptx::thread_afresh() % 32);
    q.advance();
  }

  // -lse in exponents of 2 and D; -inf and 0 where a row sees no key of the tile.
  __device__ __forceinline__ void put(int i, float lse, float delta) {
    shared.weight_shift[q.at()][i] = lse == kNegativeInfinity ? kNegativeInfinity : -lse * kLog2E;
    shared.delta[q.at()][i] = delta;
  }

  // All of a lane's rows are on their way at once.
  __device__ __forceinline__ void bring_together(const tile::KeyWork& w, int head, int tile) {
    const BackwardParams& p = args.params;
    const int of_head = w.head * args.queries_per_key_head + head;
    const float* g_lse = p.lse.data + w.batch * p.lse.batch_stride + of_head * p.lse.head_stride +
                         w.q_begin * p.lse.row_stride;
    const float* g_delta = args.g_delta + head * args.scratch_rows.rows + w.scratch_row;
    float lse[kRows], delta[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = tile * C::kTileM + first + kStep * i;
      const bool sees = row >= w.row_first && row < w.row_last;
      lse[i] = sees ? g_lse[row * p.lse.row_stride] : kNegativeInfinity;
      delta[i] = sees ? g_delta[row] : 0.0f;
    }
    ptx::mbarrier_wait(&shared.q_empty[q.at()], q.phase() ^ 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i) put(first + kStep * i, lse[i], delta[i]);
  }

  // Row after row, each address made anew: for 24 registers.
  __device__ __forceinline__ void bring_in_turn(const tile::KeyWork& w, int head, int tile) {
#pragma unroll 1
    for (int i = ptx::thread_afresh() % 32; i < C::kTileM; i += 32) {
      const int row = tile * C::kTileM + i;
      float lse = kNegativeInfinity, delta = 0.0f;
      if (row >= w.row_first && row < w.row_last) {
        const int64_t of_head = ptx::afresh(head);
        lse = args.params.lse.at(w.batch, w.q_begin + row, w.head * args.queries_per_key_head + of_head);
        delta = args.g_delta[of_head * args.scratch_rows.rows + w.scratch_row + row];
      }
      ptx::mbarrier_wait(&shared.q_empty[q.at()], q.phase() ^ 1);
      put(i, lse, delta);
      __syncwarp();
    }
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_PRODUCER_H_
