// Parts of wide units in scratch, and how they become rows: by the last block to arrive where a unit has few
// parts, else by a launch of its own, in which each block has a row's columns and each warp some of the
// parts.
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_JOIN_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_JOIN_H_

#include "cuda/ptx/grid.cuh"
#include "cuda/sm80/split_join.cuh"
#include "cuda/sm90/split_wide_product.cuh"

namespace tilewise::sm90 {

// The n-th part of a unit that begins in a block and ends in a later one of its line.
template <typename C>
struct PartsOfBlocks {
  const sm80::SplitArgs& args;
  int first;
  __device__ __forceinline__ sm80::Part<C> operator()(int n) const {
    const int block = first + n * static_cast<int>(args.team.divisor);
    return sm80::Part<C>(args, 2 * static_cast<int64_t>(block) + (n == 0 ? 1 : 0));
  }
};

template <typename C>
__device__ __forceinline__ void write_wide_part(const sm80::Part<C>& part, const sm80::Unit& u,
                                                const WideProducts<C>& products) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = products.row() + 8 * r;
    if (row >= u.rows) continue;
    float* g_o = part.o(row) + products.group * C::kHalf + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < C::kHalf / 8; ++j)
      __stcg(reinterpret_cast<float2*>(g_o + 8 * j),
             make_float2(products.r_o[4 * j + 2 * r], products.r_o[4 * j + 2 * r + 1]));
    if (products.group == 0 && lane % 4 == 0) {
      __stcg(part.top() + row, products.top[r]);
      __stcg(part.sum() + row, products.sum[r]);
    }
  }
}

// Rows of a unit that are joined, in the memory of Q: what each of their parts weighs, divided by what all
// weigh and the sink; where the row lies in o; what is known of it.
template <typename C>
struct JoinedRows {
  static constexpr uint32_t kReal = 1, kSpoiled = 2;  // a query that exists; O is not finite
  int64_t at[C::kRows];
  uint32_t state[C::kRows];
  static constexpr int kWeights = (C::QTile::kBytes - 12 * C::kRows) / 8;
  float weight[kWeights], sum[kWeights];  // part by part
};

// Row i of them, r of the unit, by one thread.
template <typename C, typename At>
__device__ __forceinline__ void weigh_parts(const sm80::SplitArgs& args, const sm80::Unit& u,
                                            JoinedRows<C>& rows, int i, int r, int pitch, int count,
                                            const At& at) {
  const ForwardParams& p = args.params;
  const int query = u.query(args, r), head = u.head(args, r);
  const bool real = query < u.w.len_q;
  float top = kNegativeInfinity, sum = 0.0f;
#pragma unroll 4
  for (int n = 0; n < count; ++n) {
    const float of_part = __ldcg(at(n).top() + r);
    rows.weight[n * pitch + i] = of_part;
    rows.sum[n * pitch + i] = __ldcg(at(n).sum() + r);
    top = fmaxf(top, of_part);
  }
#pragma unroll 4
  for (int n = 0; n < count; ++n)
    sum = fmaf(sm80::part_weight(rows.weight[n * pitch + i], top), rows.sum[n * pitch + i], sum);
  const bool sees = real && sum != 0.0f;
  const float sink = p.sinks && real ? p.sinks[head * p.sinks_stride] : kNegativeInfinity;
  const sm80::SplitEnd end(top, sum, sink);
  const float factor = sees ? end.factor() : 0.0f;
#pragma unroll 4
  for (int n = 0; n < count; ++n) {
    float& weight = rows.weight[n * pitch + i];
    weight = sm80::part_weight(weight, top) * factor;
  }
  rows.at[i] = p.o.at(u.w.batch, u.w.q_begin + query, head);
  rows.state[i] = !real ? 0 : sum * 0.0f == 0.0f ? rows.kReal : rows.kReal | rows.kSpoiled;
  if (p.lse.data) p.lse.at(u.w.batch, u.w.q_begin + query, head) = sees ? end.lse() : sink;
}

// Four columns of a row of o, `at` elements into it.
template <typename T>
__device__ __forceinline__ void write_columns(const sm80::SplitArgs& args, int64_t at, int column,
                                              const float (&o)[4]) {
  const ForwardParams& p = args.params;
  const int left = static_cast<int>(p.head_dim_v) - column;
  if (args.wide_stores && left > 0) {
    uint32_t words[2];
    tile::round_weights<T>(words, o);
    *reinterpret_cast<uint2*>(static_cast<T*>(p.o.data) + at + column) = make_uint2(words[0], words[1]);
    return;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (c >= left) continue;
    if (p.o.dtype == DType::f32)
      static_cast<float*>(p.o.data)[at + column + c] = o[c];
    else
      static_cast<T*>(p.o.data)[at + column + c] = static_cast<T>(o[c]);
  }
}

// All rows of a unit from `count` parts, by all that multiply, when nobody reads Q any more. A thread has
// four columns of several rows, and asks for all of them before it needs one.
template <typename C, typename At>
__device__ __forceinline__ void join_wide_rows(const sm80::SplitArgs& args, WideShared<C>& shared,
                                               const sm80::Unit& u, int count, const At& at) {
  using T = typename C::Element;
  using Rows = JoinedRows<C>;
  constexpr int kRowsAtOnce = 8, kPartsAtOnce = 2, kThreadsOfRow = C::kDimV / 4;
  constexpr int kStride = C::kWorkers / kThreadsOfRow;
  static_assert(sizeof(Rows) <= C::QTile::kBytes && Rows::kWeights >= C::kRows);
  Rows& rows = *reinterpret_cast<Rows*>(shared.q);
  const int thread = worker<C>(), column = thread % kThreadsOfRow * 4;
  const int pitch = min(u.rows, Rows::kWeights / count);
#pragma unroll 1
  for (int row0 = 0; row0 < u.rows; row0 += pitch) {
    const int end = min(pitch, u.rows - row0);
    if (thread < end) weigh_parts(args, u, rows, thread, row0 + thread, pitch, count, at);
    meet_workers<C>();
#pragma unroll 1
    for (int first = thread / kThreadsOfRow; first < end; first += kStride * kRowsAtOnce) {
      float o[kRowsAtOnce][4] = {};
#pragma unroll 1
      for (int n = 0; n < count; n += kPartsAtOnce) {
        float4 parts[kPartsAtOnce][kRowsAtOnce];
#pragma unroll
        for (int m = 0; m < kPartsAtOnce; ++m) {
          const float* g_o = at(min(n + m, count - 1)).o(row0) + column;
#pragma unroll
          for (int j = 0; j < kRowsAtOnce; ++j)
            parts[m][j] =
                __ldcg(reinterpret_cast<const float4*>(g_o + min(first + j * kStride, end - 1) * C::kDimV));
        }
#pragma unroll
        for (int m = 0; m < kPartsAtOnce; ++m) {
          if (n + m >= count) continue;
#pragma unroll
          for (int j = 0; j < kRowsAtOnce; ++j) {
            const float weight = rows.weight[(n + m) * pitch + min(first + j * kStride, end - 1)];
            o[j][0] = fmaf(weight, parts[m][j].x, o[j][0]);
            o[j][1] = fmaf(weight, parts[m][j].y, o[j][1]);
            o[j][2] = fmaf(weight, parts[m][j].z, o[j][2]);
            o[j][3] = fmaf(weight, parts[m][j].w, o[j][3]);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) {
        const int i = first + j * kStride;
        if (i >= end) continue;
        const bool real = rows.state[i] & Rows::kReal;
        const float probe = (o[j][0] + o[j][1] + o[j][2] + o[j][3]) * 0.0f;
        if (real && probe != 0.0f) atomicOr(&rows.state[i], Rows::kSpoiled);
        if (!real) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.0f;
        write_columns<T>(args, rows.at[i], column, o[j]);
      }
    }
    meet_workers<C>();
#pragma unroll 1
    for (int i = thread / 32; i < end; i += C::kWorkers / 32) {
      if (!(rows.state[i] & Rows::kSpoiled)) continue;
      __syncwarp();
      const int r = row0 + i;
      sm80::exact_row<T, T>(args.params, u.w.batch, u.head(args, r), u.kv_head, u.query(args, r), 0,
                            static_cast<int>(args.params.head_dim_v));
    }
    meet_workers<C>();  // before the next rows
  }
}

// 128 columns of a row, from column0 on, by the whole block: every warp adds up each kWarps-th part, and what
// they have is added up in their order.
template <typename C, typename At>
__device__ __forceinline__ void join_by_block(const sm80::SplitArgs& args, const sm80::Unit& u, int r,
                                              int count, const At& at, int column0) {
  __shared__ float s_o[C::kWarps][128], s_sum[C::kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float top = sm80::top_of_parts(r, count, at);
  float sum = 0.0f, r_o[C::kColumns] = {};
#pragma unroll 4
  for (int n = warp; n < count; n += C::kWarps) {
    const sm80::Part<C> part = at(n);
    float of_part[C::kColumns];
    sm80::load_columns<C>(part.o(r) + column0, of_part);
    const float weight = sm80::part_weight(__ldcg(part.top() + r), top);
    sum = fmaf(weight, __ldcg(part.sum() + r), sum);
#pragma unroll
    for (int i = 0; i < C::kColumns; ++i) r_o[i] = fmaf(weight, of_part[i], r_o[i]);
  }
#pragma unroll
  for (int i = 0; i < C::kColumns; ++i) s_o[warp][sm80::column_of<C>(i)] = r_o[i];
  if (lane == 0) s_sum[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    for (int w = 1; w < C::kWarps; ++w) {
      sum += s_sum[w];
#pragma unroll
      for (int i = 0; i < C::kColumns; ++i) r_o[i] += s_o[w][sm80::column_of<C>(i)];
    }
    sm80::write_row<C>(args, u, r, top, sum, r_o, column0);
  }
  __syncthreads();  // before the next row
}

// Chunks of fixed length, or parts of many blocks, to rows: `slices` blocks a unit.
template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1)
    split_wide_join(const __grid_constant__ WideArgs args, int64_t units, int slices) {
  ptx::grid_wait();
  ptx::grid_release();
  for (int64_t n = blockIdx.x; n < units * slices; n += gridDim.x) {
    const int64_t heads = args.params.heads_kv, unit = n / slices, entry = unit / heads;
    const sm80::Span s = sm80::span_of<C>(args, static_cast<int>(entry), 0);
    const sm80::Unit u(s, static_cast<int>(unit - entry * heads), C::kRows);
    constexpr int kChunk = static_cast<int>(cuda::kSplitChunk);
    const int first_chunk = s.see_first / kChunk, last_chunk = (s.see_last + kChunk - 1) / kChunk;
    const int items = s.rows * C::kPieces;
    for (int item = static_cast<int>(n - unit * slices); item < items; item += slices) {
      const int r = item / C::kPieces, column0 = item % C::kPieces * 128;
      if (args.chunks) {
        join_by_block<C>(
            args, u, r, last_chunk - first_chunk,
            [&](int c) { return sm80::Part<C>(args, unit * args.chunks + first_chunk + c); }, column0);
      } else {
        const int2 cut = args.cuts[unit];
        if (cut.y == 0) break;
        join_by_block<C>(args, u, r, cut.y, PartsOfBlocks<C>{args, cut.x}, column0);
      }
    }
  }
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_JOIN_H_
