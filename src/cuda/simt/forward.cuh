// Forward on plain fp32 FMA, for any GPU that nvcc targets: any storage type, any head dimension, every mask,
// bias and length. Made to be right and to keep O(N) memory; the tensor core rows are the fast ones.
//
// One block of 256 threads takes 64 query rows of one head (a task) and walks the key tiles that they see:
//
//   S = Q K^T      fp32 from shared memory, 32 dimensions at a time; a thread holds 4 rows x 4 keys
//
//   S -> scores    times the scale of a key in i8 or f8e4m3; natural units; hidden pairs are -inf. Tiles
//                  where nothing is seen are left out by a vote
//
//   P = e^(S - m)  m the running maximum; a row's 16 threads are half a warp and agree by shuffles
//
//   O = O e^(m_old - m) + P V   64 columns at a time; a thread holds 4 rows x 4 columns of each
//
// Invariants. A hidden pair's weight is -0, a weight that underflowed +0: where a tile of V holds a value
// that is not finite, the product leaves out exactly the pairs with -0, so that 0 * NaN reaches no row that
// does not see it; the bits are those of the plain product. Key tiles start at multiples of 64 whatever the
// tile sees, so a row's bits depend on its own sequence alone. Nothing outside [0, rows) of a sequence is
// read.
#ifndef TILEWISE_CUDA_SIMT_FORWARD_CUH_
#define TILEWISE_CUDA_SIMT_FORWARD_CUH_

#include "core/cache.h"
#include "cuda/simt/tile.cuh"

namespace tilewise::cuda::simt {

struct ForwardShared : Shared {
  int64_t k_at[kKeys], v_at[kKeys];  // the element that each key of the tile begins with, wherever it lies
  float k_scale[kKeys], v_scale[kKeys];  // what its stored elements are multiplied by
};

// O += P V over the pairs that are seen.
__device__ __forceinline__ void product_of_seen(float (&acc)[kPer][kPer], const Shared& s, int row,
                                                int column) {
#pragma unroll 1
  for (int k = 0; k < kKeys; ++k) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float weight = s.p_t[k][row + i];
      if (__float_as_uint(weight) == 0x80000000u) continue;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const float value = s.v[k][column + j];
        acc[i][j] = fmaf(seen_weight(weight, value), value, acc[i][j]);
      }
    }
  }
}

// Products to natural scores, -inf where hidden.
__device__ __forceinline__ void finish_scores(const ForwardParams& p, const Task& t, const ForwardShared& s,
                                              float (&x)[kPer][kPer], uint32_t seen, float slope, int row,
                                              int column, int64_t j0) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      float derivative;
      const float score =
          natural_score(p, x[i][j] * s.k_scale[column + j], p.bias.data ? s.p_t[column + j][row + i] : 0.0f,
                        slope, t.row0 + row + i + t.s.q_offset - (j0 + column + j), &derivative);
      x[i][j] = (seen >> (kPer * i + j)) & 1u ? score : kNegativeInfinity;
    }
  }
}

// Of the 16 threads that share 4 rows.
template <typename F>
__device__ __forceinline__ float over_row(float value, F combine) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

// kChunks: blocks of 64 columns of O that a thread holds 4 x 4 of: what head_dim_v costs in registers.
template <int kChunks>
class ForwardTile {
 public:
  __device__ __forceinline__ ForwardTile(const ForwardParams& p, ForwardShared& s)
      : p_(p),
        t_(s.task),
        s_(s),
        row_(threadIdx.x / 16 * kPer),
        column_(threadIdx.x % 16 * kPer),
        head_kv_(static_cast<int>(t_.head / p.group())) {
    slope_ = p.alibi_slope(t_.b, t_.head);
  }

  __device__ __forceinline__ void attend() {
    const Interval tiles = t_.bounds.key_tiles(kKeys);
    const bool general = p_.mask.data || p_.bias.data || p_.segment_ids_q.data;
    for (int64_t tile = tiles.lo; tile < tiles.hi; ++tile) {
      const int64_t j0 = tile * kKeys;
      uint32_t seen = 0xffffu;
      if (general || t_.bounds.classify(j0, j0 + kKeys) != TileClass::full) {
        seen = seen_pairs(p_, t_, s_, row_, column_, j0);
        if (!__syncthreads_or(seen != 0)) continue;
      }
      one_tile(j0, seen);
    }
  }

  // Rows end one thread each, and O goes through shared memory a chunk at a time: what the end and the
  // storage types cost in code stands once. The scales' memory holds maxima and sums, then what O is
  // multiplied by.
  __device__ __forceinline__ void write() {
    __syncthreads();  // the last tile's scales have been read
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float sum = over_row(sum_[i], [](float a, float b) { return a + b; });
      if (column_ == 0) {
        s_.k_scale[row_ + i] = top_[i];
        s_.v_scale[row_ + i] = sum;
      }
    }
    __syncthreads();
    if (threadIdx.x < t_.rows) end_row(threadIdx.x);
    const int64_t o_at = p_.o.at(t_.b, t_.s.q_begin + t_.row0, t_.head);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c * kColumns >= p_.head_dim_v) continue;  // no break: the accumulators need constant indices
      __syncthreads();                              // factors are there, and the chunk before has been read
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const float factor = s_.v_scale[row_ + i];
        const auto end = [=](float value) { return factor == 0.0f ? 0.0f : value * factor; };
        *reinterpret_cast<float4*>(&s_.v[row_ + i][column_]) =
            make_float4(end(o_[c][i][0]), end(o_[c][i][1]), end(o_[c][i][2]), end(o_[c][i][3]));
      }
      __syncthreads();
#pragma unroll 1
      for (int n = threadIdx.x; n < t_.rows * kColumns; n += kThreads) {
        const int r = n / kColumns, column = c * kColumns + n % kColumns;
        if (column < p_.head_dim_v)
          store(p_.o.data, p_.o.dtype, o_at + r * p_.o.row_stride + column, s_.v[r][n % kColumns]);
      }
    }
  }

 private:
  __device__ __forceinline__ void end_row(int r) {
    const int64_t row = t_.row0 + r;
    const bool real = row < t_.s.len_q;
    const float sink = p_.sinks && real ? p_.sinks[t_.head * p_.sinks_stride] : kNegativeInfinity;
    const RowEnd end = finish_row(s_.k_scale[r], s_.v_scale[r], sink);
    s_.v_scale[r] = end.factor;
    if (p_.lse.data) p_.lse.at(t_.b, t_.s.q_begin + row, t_.head) = end.lse;
  }

  __device__ __forceinline__ void one_tile(int64_t j0, uint32_t seen) {
    // Keys outside may not exist: of a tile, those that some row can see.
    const int first = static_cast<int>(t_.bounds.lo_min > j0 ? t_.bounds.lo_min - j0 : 0);
    const int last = static_cast<int>(t_.bounds.hi_max < j0 + kKeys ? t_.bounds.hi_max - j0 : kKeys);
    place_keys(j0, first, last);
    float x[kPer][kPer] = {};
    row_products<const int64_t*>(x, s_, p_.q, p_.q.at(t_.b, t_.s.q_begin + t_.row0, t_.head), t_.rows, p_.k,
                                 s_.k_at, first, last, p_.head_dim, row_, column_);
    finish_scores(p_, t_, s_, x, seen, slope_, row_, column_, j0);
    weights(x, j0);
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      *reinterpret_cast<float4*>(&s_.p_t[column_ + j][row_]) =
          make_float4(x[0][j], x[1][j], x[2][j], x[3][j]);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c * kColumns >= p_.head_dim_v) continue;  // no break: the accumulators need constant indices
      const bool bad = load_values<const int64_t*>(
          s_.v, p_.v, s_.v_at, [=](int j) { return j >= first && j < last; }, c * kColumns, p_.head_dim_v,
          [&](int j) { return s_.v_scale[j]; });
      if (__syncthreads_or(bad)) {
        product_of_seen(o_[c], s_, row_, column_);
      } else {
        product(o_[c], s_.p_t, s_.v, row_, column_, kKeys);
      }
      __syncthreads();
    }
  }

  // Of the tile's keys, those that are read: a page that nobody reads may not exist.
  __device__ __forceinline__ void place_keys(int64_t j0, int first, int last) {
    for (int j = first + static_cast<int>(threadIdx.x); j < last; j += kThreads) {
      const KeyRun run = key_run(p_, t_.s, t_.b, j0 + j, 1);
      s_.k_at[j] = p_.k.at(run.block, run.row, head_kv_);
      s_.v_at[j] = p_.v.at(run.block, run.row, head_kv_);
      const int64_t group = scale_group(p_, t_.s, run);
      s_.k_scale[j] = p_.k_scales.at(run.block, group, head_kv_);
      s_.v_scale[j] = p_.v_scales.at(run.block, group, head_kv_);
    }
    __syncthreads();
  }

  // Scores to weights, after O and the sums were scaled down where the maximum rose.
  __device__ __forceinline__ void weights(float (&x)[kPer][kPer], int64_t j0) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float tile = over_row(fmaxf(fmaxf(x[i][0], x[i][1]), fmaxf(x[i][2], x[i][3])),
                                  [](float a, float b) { return fmaxf(a, b); });
      const float top = fmaxf(top_[i], tile);
      // (-inf) - (-inf) is NaN: a row that has seen nothing, or nothing but NaN, subtracts 0.
      const float finite = top == kNegativeInfinity ? 0.0f : top;
      const float fall = top_[i] == top ? 1.0f : exp2f((top_[i] - finite) * kLog2E);
      top_[i] = top;
      if (fall != 1.0f) {
        sum_[i] *= fall;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
#pragma unroll
          for (int j = 0; j < kPer; ++j) o_[c][i][j] *= fall;
        }
      }
      DropoutRow dropout{s_.dropout_a[row_ + i], s_.dropout_b[row_ + i]};
      const float kept = dropout_scale_of(p_.dropout_threshold);
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        // A score of -inf is not seen either, whatever made it so.
        float weight = x[i][j] == kNegativeInfinity ? -0.0f : exp2f((x[i][j] - finite) * kLog2E);
        sum_[i] += weight;
        if (p_.dropout_threshold)
          weight *= dropout_keep(dropout, j0 + column_ + j, p_.dropout_threshold) ? kept : 0.0f;
        x[i][j] = weight;
      }
    }
  }

  const ForwardParams& p_;
  const Task& t_;
  ForwardShared& s_;
  const int row_, column_;
  const int head_kv_;
  float slope_ = 0.0f;
  float top_[kPer] = {kNegativeInfinity, kNegativeInfinity, kNegativeInfinity, kNegativeInfinity};
  float sum_[kPer] = {};
  float o_[kChunks][kPer][kPer] = {};
};

// Two blocks to a multiprocessor where the registers allow it: one alone took 1.6 times as long.
template <int kChunks>
__global__ void __launch_bounds__(kThreads, kChunks == 1 ? 2 : 1)
    forward(const __grid_constant__ ForwardParams p, int64_t tiles, int64_t tasks) {
  ForwardShared& s = in_shared<ForwardShared>();
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    int64_t head = task / tiles % p.heads_q, b = task / tiles / p.heads_q;
    // The last rows first: under a causal mask they are the longest. A packed sequence that is longer than it
    // was planned for takes more than one turn.
    int64_t row0 = (tiles - 1 - task % tiles) * kRows;
    while (begin_task(p, b, head, row0, s, [](int) { return true; })) {
      ForwardTile<kChunks> tile(p, s);
      tile.attend();
      tile.write();
      // From shared memory: a tile has no registers left for what only the next turn needs.
      b = s.task.b;
      head = s.task.head;
      row0 = s.task.row0 + tiles * kRows;
    }
  }
}

}  // namespace tilewise::cuda::simt
#endif  // TILEWISE_CUDA_SIMT_FORWARD_CUH_
