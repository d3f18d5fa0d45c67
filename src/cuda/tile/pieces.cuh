// Finding a piece of work fast. One thread does it, in one chain of latencies: five divisions and 64-bit
// lengths took it 3 us a piece, which is more than a short piece takes itself.
#ifndef TILEWISE_CUDA_TILE_PIECES_H_
#define TILEWISE_CUDA_TILE_PIECES_H_

#include "cuda/tile/fast_order.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::tile {

// An order, and what all sequences share where all that is known of them is in the launch's arguments:
// lengths in the device's memory may be written by the kernel before.
struct Pieces : FastOrder {
  bool uniform = false;
  int32_t rows_q = 0;
  SequenceBand band = {};

  Pieces() = default;
  Pieces(const ForwardParams& p, const Order& order) : FastOrder(order) {
    uniform = !p.cu_seqlens_q.data && !p.cu_seqlens_kv.data && !p.q_lengths.data && !p.kv_lengths.data &&
              !p.kv_starts.data && !p.q_offset.data;
    if (!uniform) return;
    const Sequence s = sequence_of(p, 0);
    rows_q = static_cast<int32_t>(s.rows_q);
    band.take(p, s, 0, 0);
  }

  // Work of queries [row, row + rows); false where the sequence has no such rows.
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
