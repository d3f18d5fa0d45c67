// Forward on plain fp32 FMA, for any GPU that nvcc targets: any storage type, any head dimension, every mask,
// bias and length. Made to be right and to keep O(N) memory; the tensor core rows are the fast ones.
//
// One block of 256 threads takes 64 query rows of one head (a task) and walks the key tiles that they see:
//
//   S = Q K^T      fp32 from shared memory, 32 dimensions at a time; a thread holds 4 rows x 4 keys
//   S -> scores    natural units; hidden pairs are -inf. Tiles where nothing is seen are left out by a vote
//   P = e^(S - m)  m the running maximum; a row's 16 threads are half a warp and agree by shuffles
//   O = O e^(m_old - m) + P V   64 columns at a time; a thread holds 4 rows x 4 columns of each
//
// Shared memory: P^T [key][row] beside one buffer that is in turn Q^T and K^T [dim][row or key], then V
// [key][column]; rows are padded by 4 floats, so that a row's end does not fall onto its start's bank and
// float4 stays aligned.
//
// Invariants. A hidden pair's weight is -0, a weight that underflowed +0: where a tile of V holds a value
// that is not finite, the product leaves out exactly the pairs with -0, so that 0 * NaN reaches no row that
// does not see it; the bits are those of the plain product. Key tiles start at multiples of 64 whatever the
// tile sees, so a row's bits depend on its own sequence alone. Nothing outside [0, rows) of a sequence is
// read.
#ifndef TILEWISE_CUDA_SIMT_FORWARD_CUH_
#define TILEWISE_CUDA_SIMT_FORWARD_CUH_

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

// to[d][r] = element d0 + d of row r of a [row, dim] tensor that starts at element `at`; 0 outside [first,
// last) and past `dim`.
__device__ __forceinline__ void load_transposed(float (*to)[kPitch], const RowTensor& t, int64_t at,
                                                int first, int last, int d0, int64_t dim) {
#pragma unroll 4
  for (int i = threadIdx.x; i < kDepth * kRows; i += kThreads) {
    const int d = i % kDepth, r = i / kDepth;
    const bool inside = r >= first && r < last && d0 + d < dim;
    to[d][r] = inside ? load(t.data, t.dtype, at + r * t.row_stride + d0 + d) : 0.0f;
  }
}

// s_v[j][c] = V; true where this thread met a value that is not finite.
__device__ __forceinline__ bool load_values(float (*to)[kPitch], const RowTensor& t, int64_t at, int first,
                                            int last, int c0, int64_t dim) {
  bool bad = false;
#pragma unroll 4
  for (int i = threadIdx.x; i < kKeys * kColumns; i += kThreads) {
    const int c = i % kColumns, j = i / kColumns;
    const bool inside = j >= first && j < last && c0 + c < dim;
    const float value = inside ? load(t.data, t.dtype, at + j * t.row_stride + c0 + c) : 0.0f;
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

// Bit 4 i + j: row `row + i` sees key `key + j`. What the bias adds to those pairs goes to where their
// weights will stand. Loops on purpose: unrolled they cost more registers than all the rest.
__device__ __forceinline__ uint32_t seen_pairs(const ForwardParams& p, const Task& t, Shared& s, int row,
                                               int column, int64_t j0) {
  uint32_t seen = 0;
#pragma unroll 1
  for (int n = 0; n < kPer * kPer; ++n) {
    const int r = row + n / kPer, c = column + n % kPer;
    const int64_t i = t.row0 + r, j = j0 + c;
    if (j < s.lo[r] || j >= s.hi[r] || !mask_allows(p.mask, t.b, t.head, i, j)) continue;
    if (p.segment_ids_q.data && read_row_index(p.segment_ids_q, t.b, t.s.q_begin, i) !=
                                    read_row_index(p.segment_ids_kv, t.b, t.s.kv_begin, j))
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

// Products to natural scores, -inf where hidden.
__device__ __forceinline__ void finish_scores(const ForwardParams& p, const Task& t, const Shared& s,
                                              float (&x)[kPer][kPer], uint32_t seen, float slope, int row,
                                              int column, int64_t j0) {
  const float inverse_cap = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      float score = x[i][j] * p.scale;
      if (p.softcap > 0.0f) score = p.softcap * tanhf(score * inverse_cap);
      if (p.bias.data) score += s.p_t[column + j][row + i];  // stale where hidden
      if (p.alibi_slopes) {
        const int64_t distance = t.row0 + row + i + t.s.q_offset - (j0 + column + j);
        score = fmaf(-slope, static_cast<float>(distance < 0 ? -distance : distance), score);
      }
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
  __device__ __forceinline__ ForwardTile(const ForwardParams& p, Shared& s)
      : p_(p),
        t_(s.task),
        s_(s),
        row_(threadIdx.x / 16 * kPer),
        column_(threadIdx.x % 16 * kPer),
        head_kv_(t_.head / p.group()) {
    if (p.alibi_slopes) slope_ = p.alibi_slopes[t_.b * p.alibi_batch_stride + t_.head * p.alibi_head_stride];
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

  __device__ __forceinline__ void write() {
    const int64_t o_at = t_.b * p_.o.batch_stride + (t_.s.q_begin + t_.row0 + row_) * p_.o.row_stride +
                         t_.head * p_.o.head_stride;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float sum = over_row(sum_[i], [](float a, float b) { return a + b; });
      if (row_ + i >= t_.rows) continue;
      const int64_t row = t_.row0 + row_ + i;
      const bool real = row < t_.s.len_q;
      const float sink = p_.sinks && real ? p_.sinks[t_.head * p_.sinks_stride] : kNegativeInfinity;
      const RowEnd end = finish_row(top_[i], sum, sink);
      if (p_.lse.data && column_ == 0)
        p_.lse.data[t_.b * p_.lse.batch_stride + t_.head * p_.lse.head_stride +
                    (t_.s.q_begin + row) * p_.lse.row_stride] = end.lse;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
          const int column = c * kColumns + column_ + j;
          if (column < p_.head_dim_v)
            store(p_.o.data, p_.o.dtype, o_at + i * p_.o.row_stride + column,
                  end.factor == 0.0f ? 0.0f : o_[c][i][j] * end.factor);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void one_tile(int64_t j0, uint32_t seen) {
    // Keys outside may not exist: of a tile, those that some row can see.
    const int first = static_cast<int>(t_.bounds.lo_min > j0 ? t_.bounds.lo_min - j0 : 0);
    const int last = static_cast<int>(t_.bounds.hi_max < j0 + kKeys ? t_.bounds.hi_max - j0 : kKeys);
    float x[kPer][kPer] = {};
    scores(x, j0, first, last);
    finish_scores(p_, t_, s_, x, seen, slope_, row_, column_, j0);
    weights(x, seen, j0);
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      *reinterpret_cast<float4*>(&s_.p_t[column_ + j][row_]) =
          make_float4(x[0][j], x[1][j], x[2][j], x[3][j]);
    const int64_t v_at =
        t_.b * p_.v.batch_stride + (t_.s.kv_begin + j0) * p_.v.row_stride + head_kv_ * p_.v.head_stride;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c * kColumns >= p_.head_dim_v) continue;  // no break: the accumulators need constant indices
      const bool bad = load_values(s_.v, p_.v, v_at, first, last, c * kColumns, p_.head_dim_v);
      if (__syncthreads_or(bad)) {
        product_of_seen(o_[c], s_, row_, column_);
      } else {
        product(o_[c], s_.p_t, s_.v, row_, column_, kKeys);
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ void scores(float (&x)[kPer][kPer], int64_t j0, int first, int last) {
    const int64_t q_at =
        t_.b * p_.q.batch_stride + (t_.s.q_begin + t_.row0) * p_.q.row_stride + t_.head * p_.q.head_stride;
    const int64_t k_at =
        t_.b * p_.k.batch_stride + (t_.s.kv_begin + j0) * p_.k.row_stride + head_kv_ * p_.k.head_stride;
    for (int d0 = 0; d0 < p_.head_dim; d0 += kDepth) {
      load_transposed(s_.q_t, p_.q, q_at, 0, t_.rows, d0, p_.head_dim);
      load_transposed(s_.k_t, p_.k, k_at, first, last, d0, p_.head_dim);
      __syncthreads();
      product(x, s_.q_t, s_.k_t, row_, column_, kDepth);
      __syncthreads();
    }
  }

  // Scores to weights, after O and the sums were scaled down where the maximum rose.
  __device__ __forceinline__ void weights(float (&x)[kPer][kPer], uint32_t seen, int64_t j0) {
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
        // A visible key whose score is -inf weighs 0, whatever its v.
        const bool sees = ((seen >> (kPer * i + j)) & 1u) && x[i][j] != kNegativeInfinity;
        float weight = sees ? exp2f((x[i][j] - finite) * kLog2E) : -0.0f;
        sum_[i] += weight;
        if (p_.dropout_threshold)
          weight *= dropout_keep(dropout, j0 + column_ + j, p_.dropout_threshold) ? kept : 0.0f;
        x[i][j] = weight;
      }
    }
  }

  const ForwardParams& p_;
  const Task& t_;
  Shared& s_;
  const int row_, column_;
  const int64_t head_kv_;
  float slope_ = 0.0f;
  float top_[kPer] = {kNegativeInfinity, kNegativeInfinity, kNegativeInfinity, kNegativeInfinity};
  float sum_[kPer] = {};
  float o_[kChunks][kPer][kPer] = {};
};

// Rows [row0, row0 + 64) of head `head`: intervals and dropout states of each, bounds of all. False where the
// sequence ends before.
__device__ __forceinline__ bool begin_task(const ForwardParams& p, int64_t b, int64_t head, int64_t row0,
                                           Shared& s) {
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
    const Interval keys = r < t.rows ? visible_keys(p, t.s, b, row0 + r) : Interval{};
    s.lo[r] = keys.lo;
    s.hi[r] = keys.hi;
    if (p.dropout_threshold) {
      uint64_t seed = p.dropout_seed, offset = p.dropout_offset;
      if (p.dropout_state) {
        seed = p.dropout_state[0];
        offset = p.dropout_state[p.dropout_state_stride];
      }
      const DropoutRow row = dropout_row(seed, offset, b, head, row0 + r);
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

template <int kChunks>
__global__ void __launch_bounds__(kThreads, 1)
    forward(const __grid_constant__ ForwardParams p, int64_t tiles, int64_t tasks) {
  __shared__ Shared s;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t head = task / tiles % p.heads_q, b = task / tiles / p.heads_q;
    // The last rows first: under a causal mask they are the longest. A packed sequence that is longer than it
    // was planned for takes more than one turn.
    int64_t row0 = (tiles - 1 - task % tiles) * kRows;
    for (; begin_task(p, b, head, row0, s); row0 += tiles * kRows) {
      ForwardTile<kChunks> tile(p, s);
      tile.attend();
      tile.write();
    }
  }
}

}  // namespace tilewise::cuda::simt
#endif  // TILEWISE_CUDA_SIMT_FORWARD_CUH_
