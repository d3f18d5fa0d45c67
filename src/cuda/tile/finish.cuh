// How rows end: divided by the sum of their weights, the sink taken in, O and LSE written. One fragment of 16
// queries, two rows a thread.
#ifndef TILEWISE_CUDA_TILE_FINISH_H_
#define TILEWISE_CUDA_TILE_FINISH_H_

#include "core/params.h"
#include "core/softmax.h"
#include "cuda/tile/store.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::tile {

// True where O of this thread's rows, `first` and + 8, has something that is not finite, or adds up to it.
// Padding rows and those of the next packed sequence may hold anything: they do not count.
template <int kCount>
__device__ __forceinline__ bool spoiled(const float (&r_o)[kCount], const Work& w, int first) {
  float probe[2][4] = {};  // chains that do not wait for each other
#pragma unroll
  for (int i = 0; i < kCount; ++i) probe[i / 2 % 2][i / 4 % 4] += r_o[i];
  bool any = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = (probe[r][0] + probe[r][1]) + (probe[r][2] + probe[r][3]);
    any = any || (!isfinite(all) && first + 8 * r < w.len_q);
  }
  return any;
}

struct RowPair {
  int first;  // the other row is 8 further
  float factor[2], lse[2];
  bool sees[2];

  // `top`: what was subtracted from the scores of row r, natural units; `sum`: of the weights.
  __device__ __forceinline__ void end(const ForwardParams& p, const Work& w, int r, float top, float sum) {
    const int row = first + 8 * r;
    sees[r] = sum != 0.0f && row < w.len_q;
    float of_keys = 1.0f, all = sum;
    if (p.sinks) {
      const float sink = p.sinks[w.head * p.sinks_stride];
      const float larger = fmaxf(top, sink);
      of_keys = ptx::exp2_approx((top - larger) * kLog2E);
      all = sum * of_keys + ptx::exp2_approx((sink - larger) * kLog2E);
      top = larger;
    }
    // 0 * NaN is not 0: what is not seen is not multiplied (write_rows).
    factor[r] = sees[r] ? __fdividef(of_keys, all) : 0.0f;
    lse[r] = sees[r] ? top + ptx::log2_approx(all) * kLn2 : w.empty_lse(p, row);
  }

  template <int kCount>
  __device__ __forceinline__ void clear_unseen(float (&r_o)[kCount]) const {
    if (__all_sync(~0u, sees[0] && sees[1])) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!sees[i / 2 % 2]) r_o[i] = 0.0f;
    }
  }

  __device__ __forceinline__ void write_lse(const ForwardParams& p, const Work& w, int lane) const {
    if (!p.lse.data || lane % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + 8 * r;
      if (row < w.rows_q) p.lse.at(w.batch, w.q_begin + row, w.head) = lse[r];
    }
  }
};

// kWhole: store_wide's.
template <typename T, bool kWhole = false, int kCount>
__device__ __forceinline__ void write_rows(const ForwardParams& p, const Work& w, float (&r_o)[kCount],
                                           const RowPair& ends, bool wide, int lane) {
  ends.clear_unseen(r_o);
  const int64_t row = w.q_begin + ends.first;
  const int64_t at = p.o.at(w.batch, row, w.head);
  const int columns[2] = {ends.first < w.rows_q ? static_cast<int>(p.head_dim_v) : 0,
                          ends.first + 8 < w.rows_q ? static_cast<int>(p.head_dim_v) : 0};
  if constexpr (sizeof(T) == 2) {
    T* g_o = static_cast<T*>(p.o.data) + at;
    if (wide)
      store_wide<kWhole>(r_o, ends.factor, g_o, 8 * p.o.row_stride, columns, lane);
    else if (p.o.dtype != DType::f32)
      store_narrow(r_o, ends.factor, g_o, 8 * p.o.row_stride, columns, lane);
  }
  if (p.o.dtype == DType::f32)
    store_narrow(r_o, ends.factor, static_cast<float*>(p.o.data) + at, 8 * p.o.row_stride, columns, lane);
  ends.write_lse(p, w, lane);
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_FINISH_H_
