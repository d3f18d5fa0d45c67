// The producer warpgroup: one thread hands out work and fills the buffers of K, V, Q and dO; a second warp
// brings the numbers of each query row.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_PRODUCER_H_
#define TILEWISE_CUDA_SM90_BACKWARD_PRODUCER_H_

#include "core/softmax.h"
#include "cuda/sm90/backward_args.cuh"
#include "cuda/sm90/backward_config.cuh"
#include "cuda/sm90/load_tile.cuh"

namespace tilewise::sm90 {

template <typename C>
struct BackwardProducer {
  const BackwardArgs& args;
  BackwardShared<C>& shared;
  Ring<1> kv;
  OddRing<C::kQStages> q;
  Ring<C::kOStages> dout;
  Ring<kWorkSlots> slot;
  uint32_t next = 0;

  __device__ __forceinline__ void run() {
    uint32_t index = blockIdx.x;
    while (index < static_cast<uint32_t>(args.order.total)) {
      int batch, head, tile_key;
      args.order.find(index, batch, head, tile_key);
      next = args.control ? gridDim.x + atomicAdd(args.control, 1) : index + gridDim.x;
      // A packed sequence that is longer than the plan's bound has further tiles. Ordered, whoever waits for
      // them waits for work that was handed out before: the first piece takes them all, from the last one.
      const int first = tile_key, further = args.order.tiles_m;
      if (C::kOrdered && tile_key == further - 1) tile_key = max(tile_key, last_tile(batch));
      while (const tile::KeyWork* work = publish(batch, head, tile_key)) {
        if (work->tile_first < work->tile_last) load(*work);
        tile_key += C::kOrdered ? -1 : further;
        if (C::kOrdered ? tile_key < first : static_cast<int64_t>(tile_key) * C::kTileN >= work->rows_kv)
          break;
      }
      index = next;
    }
    ptx::mbarrier_wait(&shared.work_empty[slot.at()], slot.phase() ^ 1);
    shared.work[slot.at()].batch = -1;
    ptx::mbarrier_arrive(&shared.work_full[slot.at()]);
    if (args.control) leave();
  }

 private:
  __device__ __forceinline__ int last_tile(int batch) const {
    const Sequence s = sequence_of(args.params, batch);
    return static_cast<int>((s.rows_kv + C::kTileN - 1) / C::kTileN) - 1;
  }

  // The piece of work as the others see it, until they have done it; null where there is none.
  __device__ __forceinline__ const tile::KeyWork* publish(int batch, int head, int tile_key) {
    ptx::mbarrier_wait(&shared.work_empty[slot.at()], slot.phase() ^ 1);
    tile::KeyWork* work = &shared.work[slot.at()];
    if (!tile::make_key_work<C::kTileM, C::kTileN>(*work, args.params, batch, head, tile_key)) return nullptr;
    ptx::mbarrier_arrive(&shared.work_full[slot.at()]);
    slot.advance();
    return work;
  }

  __device__ __forceinline__ void load(const tile::KeyWork& w) {
    const int group = args.queries_per_key_head;
    ptx::mbarrier_wait(&shared.k_empty, kv.phase() ^ 1);
    load_tile<typename C::KTile>(shared.k, args.k, &shared.k_full, ptx::CacheHint::normal, w.kv_begin + w.key,
                                 w.head, w.batch);
    bool first = true;
#pragma unroll 1
    for (int head = w.head * group; head < (w.head + 1) * group; ++head) {
#pragma unroll 1
      for (int tile = w.tile_first; tile < w.tile_last; ++tile) {
        const int row = w.q_begin + tile * C::kTileM;
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

  // The last block to leave has seen every other one draw its last ticket.
  __device__ __forceinline__ void leave() {
    __threadfence();
    if (atomicAdd(args.control + 1, 1) + 1 == gridDim.x) {
      args.control[0] = 0;
      args.control[1] = 0;
    }
  }
};

// A warp that follows the same work and brings lse and D of every row. Rows that see no key of the tile, and
// rows without any weight, get P = 0.
template <typename C>
struct RowReader {
  static constexpr int kRows = C::kTileM / 32;

  const BackwardArgs& args;
  BackwardShared<C>& shared;
  const int lane;
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
        for (int tile = w.tile_first; tile < w.tile_last; ++tile) bring(w, head, tile);
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(&shared.work_empty[slot.at()]);
      slot.advance();
    }
  }

 private:
  __device__ __forceinline__ void bring(const tile::KeyWork& w, int head, int tile) {
    const BackwardParams& p = args.params;
    const float* g_lse =
        p.lse.data + w.batch * p.lse.batch_stride + head * p.lse.head_stride + w.q_begin * p.lse.row_stride;
    const float* g_delta =
        args.g_delta + head * args.scratch_rows.rows + args.scratch_rows.begin(p, w.batch, w.q_begin);
    float shift[kRows], delta[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = tile * C::kTileM + 32 * i + lane;
      const bool sees = row >= w.row_first && row < w.row_last;
      const float lse = sees ? g_lse[row * p.lse.row_stride] : kNegativeInfinity;
      delta[i] = sees ? g_delta[row] : 0.0f;
      shift[i] = lse == kNegativeInfinity ? kNegativeInfinity : -lse * kLog2E;
    }
    ptx::mbarrier_wait(&shared.q_empty[q.at()], q.phase() ^ 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      shared.weight_shift[q.at()][32 * i + lane] = shift[i];
      shared.delta[q.at()][32 * i + lane] = delta[i];
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.q_full[q.at()]);
    q.advance();
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_PRODUCER_H_
