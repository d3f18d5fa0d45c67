// The end of a piece in the kernels for short sequences (forward_blocks.cuh, forward_teams.cuh), by a warp:
// its sixteen rows divided by their sums and written, or, where O is not finite, redone one by one.
#ifndef TILEWISE_CUDA_SM90_FINISH_ROWS_H_
#define TILEWISE_CUDA_SM90_FINISH_ROWS_H_

#include "core/softmax.h"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::sm90 {

// C: the consumer's configuration. `w` is the work with the warp's head.
template <typename C, typename Consumer>
__device__ __forceinline__ void finish_rows(Consumer& consumer, const tile::Work& w) {
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
  tile::write_rows<T>(p, w, consumer.r_o, ends, args.wide_stores, consumer.lane_now());
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FINISH_ROWS_H_
