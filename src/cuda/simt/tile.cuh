// What the SIMT kernels of both directions do with one tile of 64 queries x 64 keys, 256 threads, plain fp32
// FMA: loads in any storage type, products from shared memory, which pairs are seen, scores.
//
// A thread holds 4 rows x 4 columns of each 64 x 64 product. Shared memory: p_t [key][row] beside one buffer
// that is in turn A^T and B^T [dim][row or key], then 64 rows of 64 columns; rows are padded by 4 floats, so
// that a row's end does not fall onto its start's bank and float4 stays aligned.
//
// Invariant: nothing outside [0, rows) of a sequence is read.
#ifndef TILEWISE_CUDA_SIMT_TILE_CUH_
#define TILEWISE_CUDA_SIMT_TILE_CUH_

#include "core/dropout.h"
#include "core/mask.h"
#include "core/softmax.h"
#include "cuda/support/element.cuh"

namespace tilewise::cuda::simt {

constexpr int kThreads = 256, kRows = 64, kKeys = 64, kDepth = 32, kColumns = 64, kPitch = 64 + 4;
constexpr int kPer = 4;  // rows, keys and columns of a thread

// The rows that a block works on. In shared memory: its fields would take a third of the registers.
struct Task {
  Sequence s;
  int64_t b, head, row0;
  int rows;
  TileBounds bounds;
};

struct Shared {
  float p_t[kKeys][kPitch];
  union {
    struct {
      float q_t[kDepth][kPitch], k_t[kDepth][kPitch];
    };
    float v[kKeys][kPitch];
  };
  int64_t lo[kRows], hi[kRows];
  uint32_t dropout_a[kRows], dropout_b[kRows];
  Task task;
};

// The block's own T in shared memory, uninitialised; a __shared__ variable may have no constructor.
template <typename T>
__device__ __forceinline__ T& in_shared() {
  __shared__ __align__(16) unsigned char memory[sizeof(T)];
  return *reinterpret_cast<T*>(memory);
}

// Element c of row r of a tile: rows at one stride from element `at`, or, of a cache, each where s_at says.
__device__ __forceinline__ float element_of(const RowTensor& t, int64_t at, int r, int c) {
  return load(t.data, t.dtype, at + r * t.row_stride + c);
}
__device__ __forceinline__ float element_of(const RowTensor& t, const int64_t* s_at, int r, int c) {
  return load_stored(t.data, t.dtype, s_at[r] + c);
}

// to[d][r] = element d0 + d of row r of a [row, dim] tensor, At for element_of; 0 outside [first, last) and
// past `dim`.
template <typename At>
__device__ __forceinline__ void load_transposed(float (*to)[kPitch], const RowTensor& t, At at, int first,
                                                int last, int d0, int64_t dim) {
#pragma unroll 4
  for (int i = threadIdx.x; i < kDepth * kRows; i += kThreads) {
    const int d = i % kDepth, r = i / kDepth;
    const bool inside = r >= first && r < last && d0 + d < dim;
    to[d][r] = inside ? element_of(t, at, r, d0 + d) : 0.0f;
  }
}

struct Unscaled {
  __device__ __forceinline__ float operator()(int) const { return 1.0f; }
};

// to[j][c] = element c0 + c of row j times its scale, 0 where `row_inside` says no; true where this thread
// met a value that is not finite.
template <typename At, typename Inside, typename Scale = Unscaled>
__device__ __forceinline__ bool load_values(float (*to)[kPitch], const RowTensor& t, At at, Inside row_inside,
                                            int c0, int64_t dim, Scale scale = {}) {
  bool bad = false;
#pragma unroll 4
  for (int i = threadIdx.x; i < kKeys * kColumns; i += kThreads) {
    const int c = i % kColumns, j = i / kColumns;
    const bool inside = row_inside(j) && c0 + c < dim;
    const float value = inside ? element_of(t, at, j, c0 + c) * scale(j) : 0.0f;
    bad = bad || !isfinite(value);
    to[j][c] = value;
  }
  return bad;
}

// acc += a^T b over `depth` rows of two shared tiles.
template <typename A, typename B>
__device__ __forceinline__ void product(float (&acc)[kPer][kPer], const A a, const B b, int row, int column,
                                        int depth) {
#pragma unroll 2
  for (int k = 0; k < depth; ++k) {
    const float4 x = *reinterpret_cast<const float4*>(&a[k][row]);
    const float4 y = *reinterpret_cast<const float4*>(&b[k][column]);
    const float xs[kPer] = {x.x, x.y, x.z, x.w}, ys[kPer] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int j = 0; j < kPer; ++j) acc[i][j] = fmaf(xs[i], ys[j], acc[i][j]);
    }
  }
}

// x += A B^T over `dim` columns: `rows` rows of `a` from its element `a_at`, of `b` those in [first, last).
template <typename At>
__device__ __forceinline__ void row_products(float (&x)[kPer][kPer], Shared& s, const RowTensor& a,
                                             int64_t a_at, int rows, const RowTensor& b, At b_at, int first,
                                             int last, int64_t dim, int row, int column) {
  for (int d0 = 0; d0 < dim; d0 += kDepth) {
    load_transposed(s.q_t, a, a_at, 0, rows, d0, dim);
    load_transposed(s.k_t, b, b_at, first, last, d0, dim);
    __syncthreads();
    product(x, s.q_t, s.k_t, row, column, kDepth);
    __syncthreads();
  }
}

// Bit 4 i + j: row `row + i` sees key `key + j`. What the bias adds to those pairs goes to where their
// weights will stand. Loops on purpose: unrolled they cost more registers than all the rest.
__device__ __forceinline__ uint32_t seen_pairs(const ForwardParams& p, const Task& t, Shared& s, int row,
                                               int column, int64_t j0) {
  uint32_t seen = 0;
#pragma unroll 1
  for (int n = 0; n < kPer * kPer; ++n) {
    const int r = row + n / kPer, c = column + n % kPer;
    const int64_t i = t.row0 + r, j = j0 + c;
    if (j < s.lo[r] || j >= s.hi[r] || !pair_allowed(p, t.b, t.head, t.s.q_begin, t.s.kv_begin, i, j))
      continue;
    if (p.bias.data) {
      const float bias = load(p.bias.data, p.bias.dtype,
                              t.b * p.bias.batch_stride + t.head * p.bias.head_stride +
                                  i * p.bias.row_stride + j * p.bias.key_stride);
      if (bias == kNegativeInfinity) continue;
      s.p_t[c][r] = bias;
    }
    seen |= 1u << n;
  }
  return seen;
}

// A product as a score in natural units. `bias` counts where there is one; `derivative` of the softcap.
__device__ __forceinline__ float natural_score(const ForwardParams& p, float product, float bias, float slope,
                                               int64_t distance, float* derivative) {
  float score = product * p.scale;
  if (p.softcap > 0.0f) {
    const float t = tanhf(score * (1.0f / p.softcap));
    score = p.softcap * t;
    *derivative = fmaf(-t, t, 1.0f);
  }
  if (p.bias.data) score += bias;
  if (p.alibi_slopes) score = fmaf(-slope, static_cast<float>(distance < 0 ? -distance : distance), score);
  return score;
}

// Rows [row0, row0 + 64) of head `head`: intervals and dropout states of each, bounds of all. False where the
// sequence ends before. `keep(r)` false: row r sees nothing, whatever its interval.
template <typename Keep>
__device__ __forceinline__ bool begin_task(const ForwardParams& p, int64_t b, int64_t head, int64_t row0,
                                           Shared& s, Keep keep) {
  __syncthreads();  // the task before has read what this one writes
  Task& t = s.task;
  if (threadIdx.x == 0) {
    t.s = sequence_of(p, b);
    t.b = b;
    t.head = head;
    t.row0 = row0;
    t.rows = static_cast<int>(clamp_index(t.s.rows_q - row0, 0, kRows));
  }
  __syncthreads();
  for (int r = threadIdx.x; r < kRows; r += kThreads) {
    Interval keys = r < t.rows ? visible_keys(p, t.s, b, row0 + r) : Interval{};
    if (!keep(r)) keys = {};
    s.lo[r] = keys.lo;
    s.hi[r] = keys.hi;
    if (p.dropout_threshold) {
      const DropoutRow row = dropout_row_of(p, b, head, row0 + r);
      s.dropout_a[r] = row.a;
      s.dropout_b[r] = row.b;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    TileBounds bounds;
    for (int r = 0; r < t.rows; ++r) bounds.add({s.lo[r], s.hi[r]});
    t.bounds = bounds;
  }
  __syncthreads();
  return t.rows > 0;
}

}  // namespace tilewise::cuda::simt
#endif  // TILEWISE_CUDA_SIMT_TILE_CUH_
