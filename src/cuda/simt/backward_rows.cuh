// What the SIMT backward does beside the tiles of backward.cuh: D of every row before them, dbias and dsinks.
//
//   delta    D = rowsum(dO o O) - dlse, or the delta given - dlse; a warp a row
//   bias     a block owns 64 x 64 elements of dbias (one row or column where the bias repeats over it): dS of
//            all sequences, heads and tiles that it repeats over, added in ascending order, in registers
//   sinks    a block owns a head's dsink = -sum e^(sink - lse) D; in double, threads by rows, then a tree
#ifndef TILEWISE_CUDA_SIMT_BACKWARD_ROWS_CUH_
#define TILEWISE_CUDA_SIMT_BACKWARD_ROWS_CUH_

#include "cuda/simt/backward.cuh"

namespace tilewise::cuda::simt {

__device__ __forceinline__ float row_delta(const BackwardParams& p, int64_t b, int64_t row, int64_t head) {
  if (p.delta.data) return p.delta.at(b, row, head);
  const int64_t dout_at = p.dout.at(b, row, head), o_at = p.o.at(b, row, head);
  float sum = 0.0f;
  for (int64_t c = threadIdx.x % 32; c < p.head_dim_v; c += 32)
    sum = fmaf(load(p.dout.data, p.dout.dtype, dout_at + c), load(p.o.data, p.o.dtype, o_at + c), sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

// Blocks by tile of rows, head and sequence, which fewer blocks walk: no index is divided (64-bit divisions
// are calls, around which ptxas would keep values in memory). Where one resident block is not asked for it
// keeps some all the same.
__global__ void __launch_bounds__(kThreads, 1)
    backward_delta(const __grid_constant__ BackwardParams p, const __grid_constant__ RowStats to) {
  for (int64_t b = blockIdx.z; b < p.batch; b += gridDim.z) {
    const Sequence q = sequence_of(p, b);
    for (int64_t head = blockIdx.y; head < p.heads_q; head += gridDim.y) {
      for (int64_t row0 = int64_t{blockIdx.x} * kRows; row0 < q.len_q; row0 += int64_t{gridDim.x} * kRows) {
        const int64_t end = min(row0 + kRows, q.len_q);
        for (int64_t i = row0 + threadIdx.x / 32; i < end; i += kThreads / 32) {
          const int64_t row = q.q_begin + i;
          const float delta = row_delta(p, b, row, head);
          if (threadIdx.x % 32 != 0) continue;
          // A row that sees nothing may have anything for its dO.
          const bool lives = p.lse.at(b, row, head) != kNegativeInfinity;
          const float dlse = p.dlse.data ? p.dlse.at(b, row, head) : 0.0f;
          to.at(b, row, head) = lives ? delta - dlse : 0.0f;
        }
      }
    }
  }
}

// Where a dimension of the bias is 1, its owner walks all of that dimension.
__device__ __forceinline__ Interval part_of(int64_t extent, int64_t owner, int64_t width, int64_t all) {
  return extent == 1 ? Interval{0, all} : Interval{owner, min(owner + width, all)};
}

// `i_tiles` and `j_tiles` are the tiles of rows and keys of bias_shape.
__global__ void __launch_bounds__(kThreads, 1)
    backward_bias(const __grid_constant__ BackwardParams p, int64_t i_tiles, int64_t j_tiles, int64_t tasks) {
  Shared& s = in_shared<Shared>();
  __shared__ RowValues values;
  const int row = threadIdx.x / 16 * kPer, column = threadIdx.x % 16 * kPer;
  const int64_t* extent = p.bias_shape;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t own_j = task % j_tiles * kKeys, own_i = task / j_tiles % i_tiles * kRows;
    const int64_t own_h = task / j_tiles / i_tiles % extent[1], own_b = task / j_tiles / i_tiles / extent[1];
    float sum[kPer][kPer] = {};
    const Interval batches = part_of(extent[0], own_b, 1, p.batch);
    const Interval heads = part_of(extent[1], own_h, 1, p.heads_q);
    for (int64_t b = batches.lo; b < batches.hi; ++b) {
      const Sequence q = sequence_of(p, b);
      const Interval rows = part_of(extent[2], own_i, kRows, q.len_q);
      const Interval keys = part_of(extent[3], own_j, kKeys, q.kv_last);
      for (int64_t head = heads.lo; head < heads.hi; ++head) {
        for (int64_t i = rows.lo; i < rows.hi; i += kRows) {
          if (!begin_rows(p, b, head, i, s, values)) continue;
          for (int64_t j = keys.lo; j < keys.hi; j += kKeys) {
            Pairs pairs(p, s, values);
            if (!pairs.begin(j)) continue;
            float x[kPer][kPer] = {}, dropped[kPer][kPer];
            pairs.weights<Stage::biased>(x, dropped);
            pairs.score_gradients(x);
#pragma unroll
            for (int r = 0; r < kPer; ++r) {
#pragma unroll
              for (int c = 0; c < kPer; ++c) sum[r][c] += x[r][c];
            }
          }
        }
      }
    }
    // Rows and columns that are one element are added up by the thread that writes it.
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kPer; ++r) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) s.p_t[row + r][column + c] = sum[r][c];
    }
    __syncthreads();
    const int height = extent[2] == 1 ? kRows : 1, width = extent[3] == 1 ? kKeys : 1;
    const int64_t base = own_b * p.dbias.batch_stride + own_h * p.dbias.head_stride;
    for (int at = threadIdx.x; at < kRows / height * (kKeys / width); at += kThreads) {
      const int r = at / (kKeys / width), c = at % (kKeys / width);
      if (own_i + r >= extent[2] || own_j + c >= extent[3]) continue;
      float total = 0.0f;
      for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) total += s.p_t[r * height + y][c * width + x];
      store(p.dbias.data, p.dbias.dtype,
            base + (own_i + r) * p.dbias.row_stride + (own_j + c) * p.dbias.key_stride, total);
    }
  }
}

__global__ void __launch_bounds__(kThreads) backward_sinks(const __grid_constant__ BackwardParams p) {
  __shared__ double s_sum[kThreads];
  for (int64_t head = blockIdx.x; head < p.heads_q; head += gridDim.x) {
    const float sink = p.sinks[head * p.sinks_stride];
    double sum = 0.0;
    for (int64_t b = 0; b < p.batch && sink != kNegativeInfinity; ++b) {
      const Sequence q = sequence_of(p, b);
      for (int64_t i = threadIdx.x; i < q.len_q; i += kThreads) {
        const float lse = p.lse.at(b, q.q_begin + i, head);
        if (lse == kNegativeInfinity) continue;
        sum -= exp(static_cast<double>(sink) - static_cast<double>(lse)) *
               static_cast<double>(p.delta.at(b, q.q_begin + i, head));
      }
    }
    s_sum[threadIdx.x] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) s_sum[threadIdx.x] += s_sum[threadIdx.x + half];
    }
    if (threadIdx.x == 0) p.dsinks[head * p.dsinks_stride] = static_cast<float>(s_sum[0]);
    __syncthreads();
  }
}

}  // namespace tilewise::cuda::simt
#endif  // TILEWISE_CUDA_SIMT_BACKWARD_ROWS_CUH_
