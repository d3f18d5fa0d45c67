// Parts of wide units in scratch, and how they become rows: by the last block to arrive where a unit has few
// parts, else by a launch of its own, in which each block has a row's columns and each warp some of the
// parts.
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_JOIN_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_JOIN_H_

#include "cuda/ptx/grid.cuh"
#include "cuda/sm80/split_join.cuh"
#include "cuda/sm90/split_wide_product.cuh"

namespace tilewise::sm90 {

// The n-th part of a unit that begins in a block and ends in a later one.
template <typename C>
struct PartsOfBlocks {
  const sm80::SplitArgs& args;
  int first;
  __device__ __forceinline__ sm80::Part<C> operator()(int n) const {
    return sm80::Part<C>(args, 2 * static_cast<int64_t>(first + n) + (n == 0 ? 1 : 0));
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

// Of a unit, 128 columns each of `kItems` rows, from `count` parts, by a warp: what the rows need is asked for
// together, so that they wait for it once.
template <typename C, typename At>
__device__ __forceinline__ void join_wide_items(const sm80::SplitArgs& args, const sm80::Unit& u,
                                                const int (&item)[4], int items, int count, const At& at) {
  constexpr int kItems = 4, kAtOnce = 3;
  const int lane = threadIdx.x % 32;
  float o[kItems][C::kColumns] = {}, top[kItems], weight[kItems], sum[kItems];
  float parts[kItems][kAtOnce][C::kColumns];
  const auto row = [&](int j) { return min(item[j], items - 1) / C::kPieces; };
  const auto column = [&](int j) { return min(item[j], items - 1) % C::kPieces * 128; };
  const auto read = [&](int begin) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
#pragma unroll
        for (int i = 0; i < C::kColumns; ++i) parts[j][n][i] = 0.0f;
        if (begin + n < count) sm80::load_columns<C>(at(begin + n).o(row(j)) + column(j), parts[j][n]);
      }
    }
  };
  // A lane has a part; they are few, of a unit that its own blocks join.
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    top[j] = lane < count ? __ldcg(at(lane).top() + row(j)) : kNegativeInfinity;
    sum[j] = lane < count ? __ldcg(at(lane).sum() + row(j)) : 0.0f;
  }
  read(0);
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const float own = top[j];
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) top[j] = fmaxf(top[j], __shfl_xor_sync(~0u, top[j], bit));
    weight[j] = lane < count ? sm80::part_weight(own, top[j]) : 0.0f;
    sum[j] *= weight[j];
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) sum[j] += __shfl_xor_sync(~0u, sum[j], bit);
  }
#pragma unroll 1
  for (int begin = 0;;) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const float of_part = __shfl_sync(~0u, weight[j], begin + n);
#pragma unroll
        for (int i = 0; i < C::kColumns; ++i) o[j][i] = fmaf(of_part, parts[j][n][i], o[j][i]);
      }
    }
    begin += kAtOnce;
    if (begin >= count) break;
    read(begin);
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j)
    if (item[j] < items) sm80::write_row<C>(args, u, row(j), top[j], sum[j], o[j], column(j));
}

// All rows of a unit from `count` parts, by all that multiply.
template <typename C, typename At>
__device__ __forceinline__ void join_wide_rows(const sm80::SplitArgs& args, const sm80::Unit& u, int count,
                                               const At& at) {
  constexpr int kStride = C::kWorkers / 32;
  const int items = u.rows * C::kPieces;
#pragma unroll 1
  for (int n = worker<C>() / 32; n < items; n += 4 * kStride)
    join_wide_items<C>(args, u, {n, n + kStride, n + 2 * kStride, n + 3 * kStride}, items, count, at);
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
