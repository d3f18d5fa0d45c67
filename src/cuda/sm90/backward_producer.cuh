// The producer warpgroup: one thread fills the buffers of K, V, Q and dO, two warps bring the numbers of
// each query row, a thread of the last hands out work.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_PRODUCER_H_
#define TILEWISE_CUDA_SM90_BACKWARD_PRODUCER_H_

#include "core/softmax.h"
#include "cuda/sm90/backward_args.cuh"
#include "cuda/sm90/backward_config.cuh"
#include "cuda/sm90/load_tile.cuh"
#include "cuda/sm90/tickets.cuh"

namespace tilewise::sm90 {

// A ticket takes about as long to come as two steps.
constexpr int kQueryTilesOfNotice = 3;

// One thread that hands out work.
template <typename C>
struct Scheduler {
  const BackwardArgs& args;
  BackwardShared<C>& shared;
  Ring<kWorkSlots> slot;
  uint32_t notices = 0;

  __device__ __forceinline__ void run() {
    uint32_t index = blockIdx.x;
    while (index < static_cast<uint32_t>(args.order.total)) {
      int batch, head, tile_key;
      args.order.find(index, batch, head, tile_key);
      // A packed sequence that is longer than the plan's bound has further tiles. Ordered, whoever waits for
      // them waits for work that was handed out before: the first piece takes them all, from the last one.
      const int first = tile_key, further = args.order.tiles_m;
      if (C::kOrdered && tile_key == further - 1) tile_key = max(tile_key, last_tile(batch));
      while (const tile::KeyWork* work = publish(batch, head, tile_key)) {
        tile_key += C::kOrdered ? -1 : further;
        if (C::kOrdered ? tile_key < first : tile_key * C::kTileN >= work->rows_kv) break;
      }
      index = draw_ticket(args.control, index);
    }
    ptx::mbarrier_wait(&shared.work_empty[slot.at()], slot.phase() ^ 1);
    shared.work[slot.at()].batch = -1;
    ptx::mbarrier_arrive(&shared.work_full[slot.at()]);
    leave_tickets(args.control);
  }

 private:
  __device__ __forceinline__ int last_tile(int batch) const {
    const Sequence s = sequence_of(args.params, batch);
    return static_cast<int>((s.rows_kv + C::kTileN - 1) / C::kTileN) - 1;
  }

  // The piece of work as the others see it; null where there is none.
  __device__ __forceinline__ const tile::KeyWork* publish(int batch, int head, int tile_key) {
    ptx::mbarrier_wait(&shared.work_empty[slot.at()], slot.phase() ^ 1);
    tile::KeyWork* work = &shared.work[slot.at()];
    if (!tile::make_key_work<C::kTileM, C::kTileN>(*work, args.params, batch, head, tile_key)) return nullptr;
    work->scratch_row =
        static_cast<int32_t>(args.scratch_rows.begin<C::kTileM>(args.params, batch, work->q_begin));
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
  BackwardShared<C>& shared;
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
    const int group = args.queries_per_key_head;
    ptx::mbarrier_wait(&shared.k_empty, kv.phase() ^ 1);
    load_tile<typename C::KTile>(shared.k, args.k, &shared.k_full, ptx::CacheHint::normal, w.kv_begin + w.key,
                                 w.head, w.batch);
    bool first = true;
    int left = group * (w.tile_last - w.tile_first);
    const int notice = min(left, kQueryTilesOfNotice);
#pragma unroll 1
    for (int head = w.head * group; head < (w.head + 1) * group; ++head) {
#pragma unroll 1
      for (int tile = w.tile_first; tile < w.tile_last; ++tile) {
        const int row = w.q_begin + tile * C::kTileM;
        if (left-- == notice) ptx::mbarrier_arrive(&shared.nearly_done);
        ptx::mbarrier_wait(&shared.q_empty[q.at()], q.phase() ^ 1);
        load_tile<typename C::QTile>(shared.q[q.at()], args.q, &shared.q_full[q.at()],
                                     ptx::CacheHint::evict_last, row, head, w.batch);
        q.advance();
        if (first) {
          ptx::mbarrier_wait(&shared.v_empty, kv.phase() ^ 1);
          load_tile<typename C::KTile>(shared.v, args.v, &shared.v_full, ptx::CacheHint::normal,
                                       w.kv_begin + w.key, w.head, w.batch);
          first = false;
        }
        ptx::mbarrier_wait(&shared.dout_empty[dout.at()], dout.phase() ^ 1);
        load_tile<typename C::QTile>(shared.dout[dout.at()], args.dout, &shared.dout_full[dout.at()],
                                     ptx::CacheHint::evict_last, row, head, w.batch);
        dout.advance();
      }
    }
    kv.advance();
  }
};

// Two warps that follow the same work and bring lse and D of every row. Rows that see no key of the tile, and
// rows without any weight, get P = 0.
template <typename C>
struct RowReader {
  static constexpr int kRows = C::kTileM / 64;  // of a lane: two warps share a tile

  const BackwardArgs& args;
  BackwardShared<C>& shared;
  const int first;  // row of this lane
  OddRing<C::kQStages> q;
  Ring<kWorkSlots> slot;

  __device__ __forceinline__ void run() {
    for (;;) {
      ptx::mbarrier_wait(&shared.work_full[slot.at()], slot.phase());
      const tile::KeyWork& w = shared.work[slot.at()];
      if (w.batch < 0) return;
      const int group = args.queries_per_key_head;
#pragma unroll 1
      for (int head = w.head * group; head < (w.head + 1) * group; ++head)
#pragma unroll 1
        for (int tile = w.tile_first; tile < w.tile_last; ++tile)
          bring(w, ptx::afresh(head), ptx::afresh(tile));
      __syncwarp();
      if (first % 32 == 0) ptx::mbarrier_arrive(&shared.work_empty[slot.at()]);
      slot.advance();
    }
  }

 private:
  __device__ __forceinline__ void bring(const tile::KeyWork& w, int head, int tile) {
    const BackwardParams& p = args.params;
    const float* g_lse =
        p.lse.data + w.batch * p.lse.batch_stride + head * p.lse.head_stride + w.q_begin * p.lse.row_stride;
    const float* g_delta = args.g_delta + head * args.scratch_rows.rows + w.scratch_row;
    float shift[kRows], delta[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = tile * C::kTileM + first + 64 * i;
      const bool sees = row >= w.row_first && row < w.row_last;
      const float lse = sees ? g_lse[row * p.lse.row_stride] : kNegativeInfinity;
      delta[i] = sees ? g_delta[row] : 0.0f;
      shift[i] = lse == kNegativeInfinity ? kNegativeInfinity : -lse * kLog2E;
    }
    ptx::mbarrier_wait(&shared.q_empty[q.at()], q.phase() ^ 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      shared.weight_shift[q.at()][first + 64 * i] = shift[i];
      shared.delta[q.at()][first + 64 * i] = delta[i];
    }
    __syncwarp();
    if (first % 32 == 0) ptx::mbarrier_arrive(&shared.q_full[q.at()]);
    q.advance();
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_PRODUCER_H_
