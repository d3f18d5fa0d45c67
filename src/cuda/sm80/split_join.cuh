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

// A part in scratch: O of 16 rows, their maxima, their sums.
template <typename C>
struct Part {
  float* data;
  __device__ __forceinline__ Part(const SplitArgs& args, int64_t index)
      : data(args.parts + index * cuda::split_part_floats(C::kDim)) {}
  __device__ __forceinline__ float* o(int r) const { return data + r * C::kDim; }
  __device__ __forceinline__ float* top() const { return data + C::kRows * C::kDim; }
  __device__ __forceinline__ float* sum() const { return top() + C::kRows; }
};

template <typename C>
__device__ __forceinline__ void write_part(const Part<C>& part, int r, float top, float sum,
                                           const float (&r_o)[C::kColumns]) {
#pragma unroll
  for (int i = 0; i < C::kColumns; ++i) __stcg(part.o(r) + column_of<C>(i), r_o[i]);
  if (threadIdx.x % 32 == 0) {
    __stcg(part.top() + r, top);
    __stcg(part.sum() + r, sum);
  }
}

// Row r from `count` parts, by a warp, in ascending order; at(n) is the n-th.
template <typename C, typename At>
__device__ __forceinline__ void join_row(const SplitArgs& args, const Unit& u, int r, int count, const At& at) {
  const int lane = threadIdx.x % 32;
  float top = kNegativeInfinity;
  for (int n = lane; n < count; n += 32) top = fmaxf(top, __ldcg(at(n).top() + r));
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, bit));
  float sum = 0.0f, r_o[C::kColumns] = {};
#pragma unroll 4
  for (int n = 0; n < count; ++n) {
    const Part<C> part = at(n);
    const float weight = part_weight(__ldcg(part.top() + r), top);
    sum = fmaf(weight, __ldcg(part.sum() + r), sum);
#pragma unroll
    for (int i = 0; i < C::kColumns; ++i) r_o[i] = fmaf(weight, __ldcg(part.o(r) + column_of<C>(i)), r_o[i]);
  }
  write_row<C>(args, u, r, top, sum, r_o);
}

// By the whole block. The cursor stands on the unit's first step in this block.
template <typename C>
__device__ __forceinline__ void finish_unit(const SplitArgs& args, SplitShared<C>& shared, const Cursor<C>& cursor,
                                            const Unit& u, Products<C>& products, int64_t share) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Span& s = cursor.span;
  const bool begun = cursor.at > 0, cut = begun || cursor.at + cursor.count(args) < s.tiles;
  int64_t index = 2 * static_cast<int64_t>(blockIdx.x) + (begun ? 0 : 1);
  if (args.chunks)
    index = ((static_cast<int64_t>(s.batch) * args.q_tiles + s.q_tile) * args.params.heads_kv + cursor.head) *
                args.chunks + s.chunk;
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
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half && u.rows <= 8) break;
    if (half) __syncthreads();  // the other half has been read
    {
      const int row = lane / 4 + 8 * half;
      float top = shared.top[0][row];
#pragma unroll
      for (int w = 1; w < C::kWarps; ++w) top = fmaxf(top, shared.top[w][row]);
      const float weight = part_weight(products.top[half], top);
      float* s_row = shared.merge[warp][lane / 4] + 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < C::kDim / 8; ++j)
        *reinterpret_cast<float2*>(s_row + 8 * j) =
            make_float2(products.r_o[4 * j + 2 * half] * weight, products.r_o[4 * j + 2 * half + 1] * weight);
    }
    __syncthreads();
    for (int i = warp; i < 8 && 8 * half + i < u.rows; i += C::kWarps) {
      const int row = 8 * half + i;
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
  }
  __syncthreads();  // before the next unit writes there; and all of the part is written
  if (!cut || args.chunks) return;

  // A unit begins where its first step lies on the line, `at` steps before the block's own place in it.
  if (threadIdx.x == 0) {
    const int64_t place = share * blockIdx.x + (min(share, shared.found.total - share * blockIdx.x) - cursor.left);
    const int64_t start = place - cursor.at;
    shared.first_block = static_cast<int32_t>(start / share);
    shared.last_block = static_cast<int32_t>((start + s.tiles - 1) / share);
    __threadfence();
    const uint32_t shift = shared.first_block % 4 * 8, blocks = shared.last_block - shared.first_block + 1;
    uint32_t* word = args.counters + shared.first_block / 4;
    shared.last = (atomicAdd(word, 1u << shift) >> shift & 255u) == blocks - 1;
    if (shared.last) atomicSub(word, blocks << shift);
    __threadfence();
  }
  __syncthreads();
  if (!shared.last) return;
  const int first = shared.first_block, count = shared.last_block - first + 1;
  const auto at = [&](int n) { return Part<C>(args, 2 * static_cast<int64_t>(first + n) + (n == 0 ? 1 : 0)); };
  for (int r = warp; r < u.rows; r += C::kWarps) join_row<C>(args, u, r, count, at);
  __syncthreads();
}

// Chunks of fixed length to rows: a block for each unit.
template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1) split_join(const __grid_constant__ SplitArgs args, int64_t units) {
  for (int64_t n = blockIdx.x; n < units; n += gridDim.x) {
    const int64_t heads = args.params.heads_kv, entry = n / heads;
    const Span s = span_of<C>(args, static_cast<int>(entry), 0);
    const Unit u(args, s, static_cast<int>(n - entry * heads));
    constexpr int kChunk = static_cast<int>(cuda::kSplitChunk);
    const int first = s.see_first / kChunk, last = (s.see_last + kChunk - 1) / kChunk;
    const auto at = [&](int c) { return Part<C>(args, n * args.chunks + first + c); };
    for (int r = threadIdx.x / 32; r < s.rows; r += C::kWarps) join_row<C>(args, u, r, last - first, at);
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_JOIN_H_
