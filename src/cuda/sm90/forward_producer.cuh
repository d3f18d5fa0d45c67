// The producer: one thread that hands out work and fills the rings of Q, K and V.
//
// K runs one tile ahead of V, because a step multiplies the next tile's K before this tile's V. Tiles go from
// the last key to the first: those at the diagonal, which need the mask, come first.
#ifndef TILEWISE_CUDA_SM90_FORWARD_PRODUCER_H_
#define TILEWISE_CUDA_SM90_FORWARD_PRODUCER_H_

#include "cuda/sm90/forward_args.cuh"
#include "cuda/sm90/forward_config.cuh"
#include "cuda/sm90/load_tile.cuh"
#include "cuda/sm90/tickets.cuh"

namespace tilewise::sm90 {

// A ticket takes about as long to come as a step.
constexpr int kTilesOfNotice = 3;

template <typename C>
struct Producer {
  const ForwardArgs& args;
  ForwardShared<C>& shared;
  RingOf<C::kKeyStages> k;
  RingOf<C::kValueStages> v;
  OddRing<C::kQueries> q;
  Ring<kWorkSlots> slot;
  uint32_t next = 0;

  __device__ __forceinline__ void run() {
    uint32_t index = blockIdx.x;
    while (index < static_cast<uint32_t>(args.order.total)) {
      int batch, head, tile_row;
      args.pieces.find(static_cast<int32_t>(index), batch, head, tile_row);
      // A packed sequence that is longer than the plan's bound has further tiles, tiles_m apart.
      bool drawn = false;
      for (tile::Work work;
           args.pieces.make<C::kTileN>(work, args.params, batch, head, tile_row * C::kTileM, C::kTileM) &&
           publish(work);
           tile_row += args.order.tiles_m) {
        if (work.tile_first < work.tile_last) {
          load(work, index, !drawn);
          drawn = true;
        }
        if (static_cast<int64_t>(tile_row + args.order.tiles_m) * C::kTileM >= work.rows_q) break;
      }
      if (!drawn) draw(index);
      index = next;
    }
    tile::Work end = {};
    end.batch = -1;
    publish(end);
    leave_tickets(args.control);
  }

 private:
  __device__ __forceinline__ bool publish(const tile::Work& work) {
    ptx::mbarrier_wait(&shared.work_empty[slot.at()], slot.phase() ^ 1);
    shared.work[slot.at()] = work;
    ptx::mbarrier_arrive(&shared.work_full[slot.at()]);
    slot.advance();
    return true;
  }

  // As late as its latency allows: a ticket drawn early is work that nobody else can take.
  __device__ __forceinline__ void draw(uint32_t index) { next = draw_ticket(args.control, index); }

  __device__ __forceinline__ void load(const tile::Work& w, uint32_t index, bool draws) {
    const int kv_head = args.key_heads.divide(w.head);
    const int draw_at = min(w.tile_last - 1, w.tile_first + kTilesOfNotice);
    if (draws && draw_at == w.tile_last - 1) draw(index);
    load_keys(w, w.tile_last - 1, kv_head);
    for (int i = 0; i < C::kConsumers; ++i) {
      ptx::mbarrier_wait(&shared.q_empty[q.at()], q.phase() ^ 1);
      load_tile<typename C::QTile>(shared.q[q.at()], args.q, &shared.q_full[q.at()],
                                   ptx::CacheHint::evict_first, w.q_begin + w.row + 64 * i, w.head, w.batch);
      q.advance();
    }
    for (int tile = w.tile_last - 1; tile >= w.tile_first; --tile) {
      if (draws && tile == draw_at && tile < w.tile_last - 1) draw(index);
      if (tile > w.tile_first) load_keys(w, tile - 1, kv_head);
      ptx::mbarrier_wait(&shared.v_empty[v.at()], v.phase() ^ 1);
      load_tile<typename C::VTile>(shared.v[v.at()], args.v, &shared.v_full[v.at()],
                                   ptx::CacheHint::evict_last, w.kv_begin + tile * C::kTileN, kv_head,
                                   w.batch);
      v.advance();
    }
  }

  __device__ __forceinline__ void load_keys(const tile::Work& w, int tile, int kv_head) {
    ptx::mbarrier_wait(&shared.k_empty[k.at()], k.phase() ^ 1);
    load_tile<typename C::KTile>(shared.k[k.at()], args.k, &shared.k_full[k.at()], ptx::CacheHint::evict_last,
                                 w.kv_begin + tile * C::kTileN, kv_head, w.batch);
    k.advance();
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_PRODUCER_H_
