// What the kernels for short sequences share: 16 queries of a piece, from global memory to fragments and from
// fragments of O to global memory.
//
// A lane reads and writes 16 bytes of a row at a time: with g = lane / 4 and q = lane % 4, word i of columns
// [32 c + 8 q, + 8). The products take these words as they are. Q K^T sums over columns, in any order that Q
// and K share: words 2 s and 2 s + 1 are step s of chunk c. Columns of O and V go in fours of mma's: product
// 4 c + i gives a lane the columns of word i, so that O needs no exchange between lanes.
#ifndef TILEWISE_CUDA_SM80_SHORT_ROWS_H_
#define TILEWISE_CUDA_SM80_SHORT_ROWS_H_

#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/short_config.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/score.cuh"

namespace tilewise::sm80 {

__device__ __forceinline__ uint4 load_words(const void* g_from, bool exists) {
  // Not through the read-only path: the kernel before may still be writing when this one begins.
  return exists ? *static_cast<const uint4*>(g_from) : uint4{};
}

// Queries `row` + g and + 8 of the sequence; zeros for what is not there.
template <typename T, int kDim>
__device__ __forceinline__ void load_queries(uint4 (&r_q)[kDim / 32][2], const ForwardParams& p,
                                             const ShortWork& w, int row, int lane) {
  const int first = row + lane / 4, column = 8 * (lane % 4);
  const T* g_q = tile::row_of_tensor<T>(p.q, w.batch, w.q_begin + first, w.head) + column;
#pragma unroll
  for (int c = 0; c < kDim / 32; ++c) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      r_q[c][r] = load_words(g_q + 8 * r * p.q.row_stride + 32 * c,
                             first + 8 * r < w.len_q && column + 32 * c < p.head_dim);
  }
}

// r_s[16, 8] += Q K^T for eight keys and the 32 columns of a chunk.
template <typename T>
__device__ __forceinline__ void multiply_chunk(float* r_s, const uint4 (&q)[2], const uint4& k) {
  const uint32_t first[4] = {q[0].x, q[1].x, q[0].y, q[1].y}, second[4] = {q[0].z, q[1].z, q[0].w, q[1].w};
  ptx::mma_16x8x16<T>(r_s, first, k.x, k.y);
  ptx::mma_16x8x16<T>(r_s, second, k.z, k.w);
}

// Softcap, ALiBi and what the band hides, for rows `row` + g and + 8 and keys from `key` on.
template <int kCount>
__device__ __forceinline__ void finish_scores(float (&r_s)[kCount], const ShortArgs& args, const ShortWork& w,
                                              int row, int key, int lane) {
  const ForwardParams& p = args.params;
  const int first = row + lane / 4, lane_column = 2 * (lane % 4);
  if (args.shaped)
    tile::shape(r_s, p.scale, p.softcap, p.alibi_slope(w.batch, w.head), first + w.q_offset, w.beyond, key,
                lane_column);
  const bool full = w.lo(row + 15) <= key && w.hi(row) >= key + 2 * kCount;
  if (!full) tile::hide(r_s, w, first, key, lane_column);
}

// O of rows `ends.first` and + 8, fragment of product 4 c + i from r_o[4 (4 c + i)] on.
template <typename T, int kDim>
__device__ __forceinline__ void store_rows(float (&r_o)[kDim / 2], const ShortArgs& args, const ShortWork& w,
                                           const tile::RowPair& ends, int lane) {
  const ForwardParams& p = args.params;
  const int64_t row = w.q_begin + ends.first;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int columns = ends.first + 8 * r < w.rows_q ? static_cast<int>(p.head_dim_v) : 0;
    const int64_t at = p.o.at(w.batch, row + 8 * r, w.head);
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
      const int column = 32 * c + 8 * (lane % 4);
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        x[i] = ends.sees[r] ? r_o[16 * c + i / 2 * 4 + 2 * r + i % 2] * ends.factor[r] : 0.0f;
      if (args.wide_o) {
        if (column < columns)
          *reinterpret_cast<uint4*>(static_cast<T*>(p.o.data) + at + column) =
              make_uint4(ptx::pack<T>(x[0], x[1]), ptx::pack<T>(x[2], x[3]), ptx::pack<T>(x[4], x[5]),
                         ptx::pack<T>(x[6], x[7]));
        continue;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (column + i >= columns) continue;
        if (p.o.dtype == DType::f32)
          static_cast<float*>(p.o.data)[at + column + i] = x[i];
        else
          static_cast<T*>(p.o.data)[at + column + i] = static_cast<T>(x[i]);
      }
    }
    if (p.lse.data && lane % 4 == 0 && columns > 0) p.lse.at(w.batch, row + 8 * r, w.head) = ends.lse[r];
  }
}

// Rows [row, row + count) of the sequence, one by one, by a whole warp.
template <typename T, int kDim>
__device__ __forceinline__ void exact_rows(const ShortArgs& args, const ShortWork& w, int row, int count,
                                           int lane) {
#pragma unroll 1
  for (int i = row; i < min(row + count, w.rows_q); ++i) {
    const int first = w.lo(i);
    tile::exact_row<T, kDim>(args.params, w, i, w.kv_head, lane, first, i < w.len_q ? w.hi(i) : first,
                             tile::PlainPairs());
  }
}

// Divides by the sums and writes rows `row` + g and + 8; false where O is not finite.
template <typename T, int kDim>
__device__ __forceinline__ bool end_rows(float (&r_o)[kDim / 2], tile::OnlineSoftmax& softmax,
                                         const ShortArgs& args, const ShortWork& w, int row, int lane) {
  const int first = row + lane / 4;
  if (__any_sync(~0u, tile::spoiled(r_o, w, first))) return false;
  softmax.finish();
  tile::RowPair ends;
  ends.first = first;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    ends.end(args.params, w, r, softmax.shift(r, args.scale_log2) * kLn2, softmax.sum[r]);
  store_rows<T, kDim>(r_o, args, w, ends, lane);
  return true;
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SHORT_ROWS_H_
