// The end of a piece in the forward kernels, by a warp:
// its sixteen rows divided by their sums and written, or, where O is not finite, redone one by one. What goes
// by the copy engine passes through shared memory: no addresses, no exchange between lanes, whole lines.
#ifndef TILEWISE_CUDA_SM90_FINISH_ROWS_H_
#define TILEWISE_CUDA_SM90_FINISH_ROWS_H_

#include "core/softmax.h"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

// C: the consumer's configuration. `w` is the work with the warp's head; where it is `staged`, `s_rows`
// are the warp's rows of a tile of queries that nobody needs any more: O lies there until lane 0 has waited
// for its bulk group.
template <typename C, typename Consumer>
__device__ __forceinline__ void finish_rows(Consumer& consumer, const tile::Work& w, bool staged,
                                            uint8_t* s_rows) {
  using T = typename C::Element;
  const auto& args = consumer.args;
  const ForwardParams& p = args.params;
  if (__any_sync(~0u, tile::spoiled(consumer.r_o, w, consumer.row_now()))) {
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int row = __shfl_sync(~0u, consumer.row_now() + i, 0);
      if (row >= w.rows_q) continue;
      const int key = w.lo(row), last = row < w.len_q ? w.hi(row) : key;
      tile::exact_row<T, C::kDimV>(p, w, row, consumer.kv_head(), consumer.lane_now(), key, last,
                                   tile::PlainPairs());
    }
    return;
  }
  auto& softmax = consumer.softmax;
  softmax.finish();
  tile::RowPair ends;
  ends.first = consumer.row_now();
#pragma unroll
  for (int r = 0; r < 2; ++r) ends.end(p, w, r, softmax.shift(r, args.scale_log2) * kLn2, softmax.sum[r]);
  const int lane = consumer.lane_now();
  if (!staged) {
    tile::write_rows<T, true>(p, w, consumer.r_o, ends, args.wide_stores, lane);
    return;
  }
  ends.clear_unseen(consumer.r_o);
  tile::store_shared<T, C::QTile::kPanelBytes>(consumer.r_o, ends.factor, s_rows, lane);
  ptx::fence_async_shared();
  __syncwarp();
  if (lane == 0 && ends.first < w.rows_q) {
#pragma unroll
    for (int panel = 0; panel < C::VTile::kPanels; ++panel)
      ptx::tma_store(&args.o.map, s_rows + panel * C::QTile::kPanelBytes, panel * tile::kPanelColumns,
                     ends.first, w.head * args.o.head_step, w.batch * args.o.batch_step);
    ptx::bulk_commit();
  }
  ends.write_lse(p, w, lane);
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FINISH_ROWS_H_
