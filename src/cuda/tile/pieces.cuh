// Finding a piece of work fast. One thread does it, in one chain of latencies: five divisions and 64-bit
// lengths took it 3 us a piece, which is more than a short piece takes itself.
#ifndef TILEWISE_CUDA_TILE_PIECES_H_
#define TILEWISE_CUDA_TILE_PIECES_H_

#include <algorithm>

#include "cuda/tile/fast_divide.cuh"
#include "cuda/tile/order.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::tile {

// An order, and what all sequences share where all that is known of them is in the launch's arguments:
// lengths in the device's memory may be written by the kernel before.
struct Pieces {
  Order order;
  FastDivide in_group, here, here_last, heads;
  int32_t last_group = 0;
  bool uniform = false;
  int32_t rows_q = 0;
  SequenceBand band = {};

  Pieces() = default;
  Pieces(const ForwardParams& p, const Order& of)
      : order(of),
        in_group(std::max(1, of.group * of.tiles_m)),
        here(std::max(1, of.group)),
        heads(std::max(1, of.heads)) {
    if (of.all_heads > 0) last_group = (of.all_heads - 1) / of.group;
    here_last = FastDivide(std::max(1, of.all_heads - last_group * of.group));
    uniform = !p.cu_seqlens_q.data && !p.cu_seqlens_kv.data && !p.q_lengths.data && !p.kv_lengths.data &&
              !p.kv_starts.data && !p.q_offset.data;
    if (!uniform) return;
    const Sequence s = sequence_of(p, 0);
    rows_q = static_cast<int32_t>(s.rows_q);
    band.take(p, s, 0, 0);
  }

  // What Order::find finds.
  TILEWISE_HD void find(int32_t index, int32_t& batch, int32_t& head, int32_t& tile_row) const {
    int32_t rest = index;
    const int32_t group = in_group.split(rest);
    tile_row = group == last_group ? here_last.split(rest) : here.split(rest);
    if (order.last_first) tile_row = order.tiles_m - 1 - tile_row;
    head = group * order.group + rest;
    batch = heads.split(head);
  }

  // Its work: queries [row, row + rows); false where the sequence has no such rows.
  template <int kTileN>
  __device__ __forceinline__ bool make(Work& w, const ForwardParams& p, int batch, int head, int row,
                                       int rows) const {
    if (uniform) {
      static_cast<SequenceBand&>(w) = band;
      w.batch = batch;
      w.head = head;
      w.rows_q = rows_q;
    } else {
      const Sequence s = sequence_of(p, batch);
      w.rows_q = static_cast<int32_t>(s.rows_q);
      w.take(p, s, batch, head);
    }
    if (row >= w.rows_q) return false;
    w.place<kTileN>(row, rows);
    return true;
  }
};

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_PIECES_H_
