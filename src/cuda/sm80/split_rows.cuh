// The rows of a unit: which query and head each is, what it sees, and how it ends.
#ifndef TILEWISE_CUDA_SM80_SPLIT_ROWS_H_
#define TILEWISE_CUDA_SM80_SPLIT_ROWS_H_

#include "cuda/sm80/split_schedule.cuh"
#include "cuda/tile/exact.cuh"

namespace tilewise::sm80 {

struct Unit {
  const tile::SequenceBand& w;
  int32_t kv_head, row0, rows;

  __device__ __forceinline__ Unit(const Span& s, int head, int tile_rows = cuda::kSplitRows)
      : w(s.band), kv_head(head), row0(s.q_tile * tile_rows), rows(s.rows) {}
  __device__ __forceinline__ int query(const SplitArgs& args, int r) const {
    return args.group.divide(row0 + r);
  }
  __device__ __forceinline__ int head(const SplitArgs& args, int r) const {
    const int row = row0 + r, group = static_cast<int>(args.group.divisor);
    return kv_head * group + row - args.group.divide(row) * group;
  }
};

// Columns [column0, column_end) of a row key by key, by a whole warp: what tile/exact.cuh is for, wherever
// the keys lie. 32 columns at a time, so that it needs few registers of its caller.
template <typename T, typename Stored>
__device__ __noinline__ void exact_row(const ForwardParams& p, int batch, int head, int kv_head, int query,
                                       int column0, int column_end) {
  const int lane = threadIdx.x % 32;
  const Sequence place = sequence_of(p, batch);
  tile::SequenceBand w;
  w.take(p, place, batch, head);
  const auto row_of = [&](const RowTensor& t, int key) {
    const KeyRun run = key_run(p, place, batch, key, 1);
    return static_cast<const Stored*>(t.data) + t.at(run.block, run.row, kv_head);
  };
  const auto scale_of = [&](const CacheScales& scales, int key) {
    if constexpr (sizeof(Stored) > 1) return 1.0f;
    const KeyRun run = key_run(p, place, batch, key, 1);
    return scales.at(run.block, scale_group(p, place, run), kv_head);
  };
  const int first = w.lo(query), last = query < w.len_q ? w.hi(query) : first;
  const float slope = p.alibi_slope(batch, head);
  const T* g_q = static_cast<const T*>(p.q.data) + p.q.at(batch, w.q_begin + query, head);
  const auto score = [&](int key) {
    const float distance = fabsf(static_cast<float>(query + w.q_offset - key)) + w.beyond;
    const float product = tile::exact_score(p, g_q, row_of(p.k, key), scale_of(p.k_scales, key));
    return (product - slope * distance) * kLog2E;
  };
  float top = kNegativeInfinity;
#pragma unroll 1
  for (int key = first + lane; key < last; key += 32) top = fmaxf(top, score(key));
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, bit));
  const float shift = top == kNegativeInfinity ? 0.0f : top;
  const float sink = p.sinks && query < w.len_q ? p.sinks[head * p.sinks_stride] : kNegativeInfinity;
#pragma unroll 1
  for (int column = column0 + lane; column - lane < column_end; column += 32) {
    float sum = 0.0f, o = 0.0f;
#pragma unroll 1
    for (int base = first; base < last; base += 32) {
      const float x = base + lane < last ? score(base + lane) : kNegativeInfinity;
      // -0 marks a pair whose score is -inf: hidden by its data, it counts as not seen.
      const float weight = x == kNegativeInfinity ? -0.0f : ptx::exp2_approx(x - shift);
      sum += weight;
#pragma unroll 1
      for (int i = 0; i < 32 && base + i < last; ++i) {
        const float of_key = __shfl_sync(~0u, weight, i);
        if (__float_as_uint(of_key) == 0x80000000u || column >= column_end) continue;
        const float value =
            static_cast<float>(row_of(p.v, base + i)[column]) * scale_of(p.v_scales, base + i);
        o += seen_weight(of_key, value) * value;
      }
    }
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
    const RowEnd end = finish_row(top * kLn2, sum, sink);
    if (p.lse.data && column == 0) p.lse.at(batch, w.q_begin + query, head) = end.lse;
    if (column >= column_end) continue;
    const int64_t at = p.o.at(batch, w.q_begin + query, head) + column;
    o = end.factor == 0.0f ? 0.0f : o * end.factor;
    if (p.o.dtype == DType::f32)
      static_cast<float*>(p.o.data)[at] = o;
    else
      static_cast<T*>(p.o.data)[at] = static_cast<T>(o);
  }
}

// Columns of a row, or of a part of it, that a lane holds: i < C::kColumns.
template <typename C>
__device__ __forceinline__ int column_of(int i) {
  return static_cast<int>(threadIdx.x) % 32 * C::kColumns + i;
}

// How a row ends: `top` in exponents of 2, `sum` of the weights. The sink is one more weight; the larger of
// the two maxima is the common one.
struct SplitEnd {
  float common, of_keys, all;

  __device__ __forceinline__ SplitEnd(float top, float sum, float sink) {
    common = fmaxf(top, sink * kLog2E);
    of_keys = ptx::exp2_approx(top - common);
    all = fmaf(sum, of_keys, ptx::exp2_approx(sink * kLog2E - common));
  }
  __device__ __forceinline__ float factor() const { return of_keys / all; }  // of O
  __device__ __forceinline__ float lse() const { return (common + ptx::log2_approx(all)) * kLn2; }
};

// Row r of the unit from column0 on, by a warp: `top` in exponents of 2, `sum` of the weights, r_o not
// divided yet.
template <typename C>
__device__ __forceinline__ void write_row(const SplitArgs& args, const Unit& u, int r, float top, float sum,
                                          const float (&r_o)[C::kColumns], int column0 = 0) {
  using T = typename C::Element;
  const ForwardParams& p = args.params;
  const int query = u.query(args, r), head = u.head(args, r);
  const bool real = query < u.w.len_q;
  float probe = sum * 0.0f;
#pragma unroll
  for (int i = 0; i < C::kColumns; ++i) probe += r_o[i] * 0.0f;
  if (__any_sync(~0u, probe != 0.0f) && real)
    return exact_row<T, typename C::Stored>(p, u.w.batch, head, u.kv_head, query, column0,
                                            min(column0 + 32 * C::kColumns, static_cast<int>(p.head_dim_v)));
  const bool sees = real && sum != 0.0f;
  const float sink = p.sinks && real ? p.sinks[head * p.sinks_stride] : kNegativeInfinity;
  const SplitEnd end(top, sum, sink);
  const float factor = sees ? end.factor() : 0.0f;
  const int64_t at = p.o.at(u.w.batch, u.w.q_begin + query, head);
#pragma unroll
  for (int i = 0; i < C::kColumns; ++i) {
    const int column = column0 + column_of<C>(i);
    const float o = sees ? r_o[i] * factor : 0.0f;
    if (column >= p.head_dim_v) continue;
    if (p.o.dtype == DType::f32)
      static_cast<float*>(p.o.data)[at + column] = o;
    else
      static_cast<T*>(p.o.data)[at + column] = static_cast<T>(o);
  }
  if (p.lse.data && column0 == 0 && threadIdx.x % 32 == 0)
    p.lse.at(u.w.batch, u.w.q_begin + query, head) = sees ? end.lse() : sink;
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_ROWS_H_
