// The end of a unit: the warps of a block put together, and the parts of several blocks.
#ifndef TILEWISE_CUDA_SM80_SPLIT_JOIN_H_
#define TILEWISE_CUDA_SM80_SPLIT_JOIN_H_

#include "cuda/sm80/split_product.cuh"
#include "cuda/sm80/split_rows.cuh"

namespace tilewise::sm80 {

// Maxima -inf weigh nothing, and (-inf) - (-inf) would be NaN.
__device__ __forceinline__ float part_weight(float top, float common) {
  return ptx::exp2_approx(top - (common == kNegativeInfinity ? 0.0f : common));
}

// A part in scratch: O of the rows of a tile, their maxima, their sums.
template <typename C>
struct Part {
  int rows;
  float* data;
  __device__ __forceinline__ Part(const SplitArgs& args, int64_t index)
      : rows(C::part_rows(args)), data(args.parts + index * cuda::split_part_floats(rows, C::kDimV)) {}
  __device__ __forceinline__ float* o(int r) const { return data + r * C::kDimV; }
  __device__ __forceinline__ float* top() const { return data + rows * C::kDimV; }
  __device__ __forceinline__ float* sum() const { return top() + rows; }
};

// Units in the order of the line.
__device__ __forceinline__ int64_t unit_of(const SplitArgs& args, const Span& s, int head) {
  return (static_cast<int64_t>(s.band.batch) * args.q_tiles + s.q_tile) * args.params.heads_kv + head;
}

// A lane's columns of a row of a part.
template <typename C>
__device__ __forceinline__ void load_columns(const float* g_row, float (&r_o)[C::kColumns]) {
  static_assert(C::kColumns == 2 || C::kColumns == 4);
  const float* g_o = g_row + column_of<C>(0);
  if constexpr (C::kColumns == 4) {
    const float4 o = __ldcg(reinterpret_cast<const float4*>(g_o));
    r_o[0] = o.x, r_o[1] = o.y, r_o[2] = o.z, r_o[3] = o.w;
  } else {
    const float2 o = __ldcg(reinterpret_cast<const float2*>(g_o));
    r_o[0] = o.x, r_o[1] = o.y;
  }
}

template <typename C>
__device__ __forceinline__ void write_part(const Part<C>& part, int r, float top, float sum,
                                           const float (&r_o)[C::kColumns]) {
  float* g_o = part.o(r) + column_of<C>(0);
  if constexpr (C::kColumns == 4)
    __stcg(reinterpret_cast<float4*>(g_o), make_float4(r_o[0], r_o[1], r_o[2], r_o[3]));
  else
    __stcg(reinterpret_cast<float2*>(g_o), make_float2(r_o[0], r_o[1]));
  if (threadIdx.x % 32 == 0) {
    __stcg(part.top() + r, top);
    __stcg(part.sum() + r, sum);
  }
}

// The largest maximum of row r in `count` parts, by a warp.
template <typename At>
__device__ __forceinline__ float top_of_parts(int r, int count, const At& at) {
  float top = kNegativeInfinity;
#pragma unroll 1
  for (int n = threadIdx.x % 32; n < count; n += 32) top = fmaxf(top, __ldcg(at(n).top() + r));
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, bit));
  return top;
}

// Row r from column0 on from `count` parts, by a warp, in ascending order; at(n) is the n-th. Weights are
// found by the lanes, a part each, while the first parts are on their way.
template <typename C, typename At>
__device__ __forceinline__ void join_row(const SplitArgs& args, const Unit& u, int r, int count, const At& at,
                                         int column0 = 0) {
  constexpr int kAtOnce = 8;
  const int lane = threadIdx.x % 32;
  float parts[kAtOnce][C::kColumns];
  const auto read = [&](int begin) {
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
#pragma unroll
      for (int i = 0; i < C::kColumns; ++i) parts[n][i] = 0.0f;
      if (begin + n < count) load_columns<C>(at(begin + n).o(r) + column0, parts[n]);
    }
  };
  read(0);
  const float top = top_of_parts(r, count, at);
  float sum = 0.0f, weight = 0.0f, r_o[C::kColumns] = {};
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kAtOnce) {
    if (begin % 32 == 0) {
      const int n = begin + lane;
      weight = n < count ? part_weight(__ldcg(at(n).top() + r), top) : 0.0f;
      if (n < count) sum = fmaf(weight, __ldcg(at(n).sum() + r), sum);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const float of_part = __shfl_sync(~0u, weight, (begin + n) % 32);
#pragma unroll
      for (int i = 0; i < C::kColumns; ++i) r_o[i] = fmaf(of_part, parts[n][i], r_o[i]);
    }
    if (begin + kAtOnce < count) read(begin + kAtOnce);
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
  write_row<C>(args, u, r, top, sum, r_o, column0);
}

// Rows [begin, begin + kMergeRows) of all warps to shared memory, each warp's scaled to the common maximum.
template <typename C>
__device__ __forceinline__ void lay_down(SplitShared<C>& shared, const Products<C>& products, int begin) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = begin / 8, row = lane / 4 + 8 * half;
  float top = shared.top[0][row];
#pragma unroll
  for (int w = 1; w < C::kWarps; ++w) top = fmaxf(top, shared.top[w][row]);
  const float weight = part_weight(half ? products.top[1] : products.top[0], top);
  if (C::kMergeRows == 8 || row / C::kMergeRows == begin / C::kMergeRows)
    products.put_row(shared.merge[warp][row - begin], half, weight);
}

// By the whole block.
template <typename C>
__device__ __forceinline__ void finish_unit(const SplitArgs& args, SplitShared<C>& shared, const Piece& piece,
                                            Products<C>& products) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Span& s = piece.span;
  const Unit u(s, piece.head);
  const bool begun = piece.at > 0, cut = begun || piece.count < s.groups;
  int64_t index = 2 * static_cast<int64_t>(blockIdx.x) + (begun ? 0 : 1);
  if (args.chunks) index = unit_of(args, s, piece.head) * args.chunks + s.chunk;
  const Part<C> part(args, index);

  products.finish();
  if (lane % 4 == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      shared.top[warp][lane / 4 + 8 * r] = products.top[r];
      shared.sum[warp][lane / 4 + 8 * r] = products.sum[r];
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int begin = 0; begin < u.rows; begin += C::kMergeRows) {
    lay_down(shared, products, begin);
    __syncthreads();
#pragma unroll 1
    for (int i = warp; i < C::kMergeRows && begin + i < u.rows; i += C::kWarps) {
      const int row = begin + i;
      float top = shared.top[0][row], sum = 0.0f, r_o[C::kColumns] = {};
#pragma unroll
      for (int w = 1; w < C::kWarps; ++w) top = fmaxf(top, shared.top[w][row]);
#pragma unroll
      for (int w = 0; w < C::kWarps; ++w) {
        sum = fmaf(part_weight(shared.top[w][row], top), shared.sum[w][row], sum);
#pragma unroll
        for (int c = 0; c < C::kColumns; ++c) r_o[c] += shared.merge[w][i][column_of<C>(c)];
      }
      if (cut || args.chunks)
        write_part(part, row, top, sum, r_o);
      else
        write_row<C>(args, u, row, top, sum, r_o);
    }
    __syncthreads();  // the rows have been read; all of a part is written
  }
  if (!cut || args.chunks) return;

  if (threadIdx.x == 0) {
    const int share = share_of<C>(args, shared.found.total), first = piece.start / share;
    const uint32_t blocks = (piece.start + s.groups - 1) / share - first + 1, shift = first % 4 * 8;
    shared.first_block = first;
    shared.blocks = static_cast<int32_t>(blocks);
    __threadfence();
    uint32_t* word = args.counters + first / 4;
    shared.last = (atomicAdd(word, 1u << shift) >> shift & 255u) == blocks - 1;
    if (shared.last) atomicSub(word, blocks << shift);
    __threadfence();
  }
  __syncthreads();
  if (shared.last) {
    const int first = shared.first_block, count = shared.blocks;
    const auto at = [&](int n) {
      return Part<C>(args, 2 * static_cast<int64_t>(first + n) + (n == 0 ? 1 : 0));
    };
#pragma unroll 1
    for (int r = warp; r < u.rows; r += C::kWarps) join_row<C>(args, u, r, count, at);
  }
  __syncthreads();  // before the next unit's end writes there
}

// Chunks of fixed length to rows: a block for each unit.
template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1)
    split_join(const __grid_constant__ SplitArgs args, int64_t units) {
  ptx::grid_wait();
  ptx::grid_release();
  for (int64_t n = blockIdx.x; n < units; n += gridDim.x) {
    const int64_t heads = args.params.heads_kv, entry = n / heads;
    const Span s = span_of<C>(args, static_cast<int>(entry), 0);
    const Unit u(s, static_cast<int>(n - entry * heads));
    constexpr int kChunk = static_cast<int>(cuda::kSplitChunk);
    const int first = s.see_first / kChunk, last = (s.see_last + kChunk - 1) / kChunk;
    const auto at = [&](int c) { return Part<C>(args, n * args.chunks + first + c); };
    for (int r = threadIdx.x / 32; r < s.rows; r += C::kWarps) join_row<C>(args, u, r, last - first, at);
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_JOIN_H_
