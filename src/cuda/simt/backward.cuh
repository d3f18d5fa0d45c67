// Backward on plain fp32 FMA, recomputed, for any GPU that nvcc targets: what the forward beside it takes,
// and every gradient. Made to be right, in O(S) memory, and the same bits every time: no atomics anywhere.
//
//   S = Q K^T, P = e^(S - lse)      dP = dO V^T, dS = P o (dP - D)      D = rowsum(dO o O) - dlse, made once
//
// Every output tile has one owner, a block of 256 threads, which walks all that adds to it in a fixed order
// and writes once; S and dP are made again by each owner, so dq, dk and dv together cost 7 products instead
// of 5.
//
//   keys      64 keys of a key head, for dV += P^T dO and dK += dS^T Q: query heads of the group and their
//             query tiles that see them
//
//   queries   64 queries of a head, for dQ += dS K: key tiles that they see
//
//   bias      64 x 64 elements of dbias += dS: all sequences, heads and tiles that the bias repeats over
//
// A block holds kChunks chunks of 64 columns of its gradients in registers; wide heads take several blocks
// (slices). P and dS pass through one shared tile in turn, so shared memory is the forward's beside lse and
// D.
//
// Invariants. A row that sees nothing, padding or lse -inf, is taken as rows of zeros: its dO and q may be
// anything. A hidden pair's P and dS are zero by selection, and where a key that no row of the tile sees
// holds a value that is not finite, dS K leaves the zeros out. Tiles start at multiples of 64 of their
// sequence.
#ifndef TILEWISE_CUDA_SIMT_BACKWARD_CUH_
#define TILEWISE_CUDA_SIMT_BACKWARD_CUH_

#include "cuda/simt/tile.cuh"

namespace tilewise::cuda::simt {

// In shared memory, of the task's rows.
struct RowValues {
  float lse[kRows], delta[kRows];
};

enum class Stage { product, biased };  // dS of q.k, or of the score where the bias is added

// Rows [row0, row0 + 64) of a head with their lse and D; false where the sequence ends before. `p.delta` is
// D.
__device__ __forceinline__ bool begin_rows(const BackwardParams& p, int64_t b, int64_t head, int64_t row0,
                                           Shared& s, RowValues& rows) {
  return begin_task(p, b, head, row0, s, [&](int r) {
    const Sequence& q = s.task.s;
    if (row0 + r >= q.len_q) return false;
    const float lse = p.lse.at(b, q.q_begin + row0 + r, head);
    rows.lse[r] = lse;
    rows.delta[r] = p.delta.at(b, q.q_begin + row0 + r, head);
    return lse != kNegativeInfinity;
  });
}

// One tile of pairs: its P and dS in the registers of the threads, 4 rows x 4 keys each.
class Pairs {
 public:
  __device__ __forceinline__ Pairs(const BackwardParams& p, Shared& s, const RowValues& rows)
      : p_(p),
        t_(s.task),
        s_(s),
        rows_(rows),
        row_(threadIdx.x / 16 * kPer),
        column_(threadIdx.x % 16 * kPer) {}

  // Looks at keys [j0, j0 + 64); false where no pair is seen, the same for all threads.
  __device__ __forceinline__ bool begin(int64_t j0) {
    const TileClass tile = t_.bounds.classify(j0, j0 + kKeys);
    if (tile == TileClass::skip) return false;
    j0_ = j0;
    first_ = static_cast<int>(t_.bounds.lo_min > j0 ? t_.bounds.lo_min - j0 : 0);
    last_ = static_cast<int>(t_.bounds.hi_max < j0 + kKeys ? t_.bounds.hi_max - j0 : kKeys);
    seen_ = 0xffffu;
    // The class is that of the rows there are; the others must not count.
    const bool all = tile == TileClass::full && t_.rows == kRows;
    if (all && !p_.mask.data && !p_.bias.data && !p_.segment_ids_q.data) return true;
    seen_ = seen_pairs(p_, t_, s_, row_, column_, j0);
    return __syncthreads_or(seen_ != 0);
  }

  // x = P (softcap's derivative in it for Stage::product), dropped = what V is weighted by.
  template <Stage kStage>
  __device__ __forceinline__ void weights(float (&x)[kPer][kPer], float (&dropped)[kPer][kPer]) {
    const int64_t head_kv = t_.head / p_.group();
    row_products(x, s_, p_.q, p_.q.at(t_.b, t_.s.q_begin + t_.row0, t_.head), t_.rows, p_.k,
                 p_.k.at(t_.b, t_.s.kv_begin + j0_, head_kv), first_, last_, p_.head_dim, row_, column_);
    const float slope = p_.alibi_slope(t_.b, t_.head), kept = dropout_scale_of(p_.dropout_threshold);
    kept_ = 0xffffu;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int r = row_ + i;
      const DropoutRow dropout{s_.dropout_a[r], s_.dropout_b[r]};
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int n = kPer * i + j, c = column_ + j;
        float derivative = 1.0f;
        const float score = natural_score(p_, x[i][j], p_.bias.data ? s_.p_t[c][r] : 0.0f, slope,
                                          t_.row0 + r + t_.s.q_offset - (j0_ + c), &derivative);
        if (score == kNegativeInfinity) seen_ &= ~(1u << n);
        // Rounded once as a difference: both can be large beside it.
        float weight = (seen_ >> n) & 1u ? exp2f((score - rows_.lse[r]) * kLog2E) : 0.0f;
        x[i][j] = kStage == Stage::product && p_.softcap > 0.0f ? weight * derivative : weight;
        if (p_.dropout_threshold) {
          const bool keeps = dropout_keep(dropout, j0_ + c, p_.dropout_threshold);
          if (!keeps) kept_ &= ~(1u << n);
          weight *= keeps ? kept : 0.0f;
        }
        dropped[i][j] = weight;
      }
    }
    __syncthreads();  // the bias that stood in p_t has been read
  }

  // x = dS from x as weights() left it.
  __device__ __forceinline__ void score_gradients(float (&x)[kPer][kPer]) {
    float dp[kPer][kPer] = {};
    const int64_t head_kv = t_.head / p_.group();
    row_products(dp, s_, p_.dout, p_.dout.at(t_.b, t_.s.q_begin + t_.row0, t_.head), t_.rows, p_.v,
                 p_.v.at(t_.b, t_.s.kv_begin + j0_, head_kv), first_, last_, p_.head_dim_v, row_, column_);
    const float kept = p_.dropout_threshold ? dropout_scale_of(p_.dropout_threshold) : 1.0f;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float delta = rows_.delta[row_ + i];
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int n = kPer * i + j;
        const float gradient = dp[i][j] * ((kept_ >> n) & 1u ? kept : 0.0f) - delta;
        x[i][j] = (seen_ >> n) & 1u ? x[i][j] * gradient : 0.0f;
      }
    }
  }

  __device__ __forceinline__ bool key_inside(int j) const { return j >= first_ && j < last_; }
  __device__ __forceinline__ bool row_lives(int r) const { return s_.hi[r] > s_.lo[r]; }

 private:
  const BackwardParams& p_;
  const Task& t_;
  Shared& s_;
  const RowValues& rows_;
  const int row_, column_;
  int64_t j0_ = 0;
  int first_ = 0, last_ = 0;      // keys of the tile that some row can see; the others may not exist
  uint32_t seen_ = 0, kept_ = 0;  // bit 4 i + j: of row i, key j
};

// acc += a^T b over 64 rows, without the pairs whose weight in `a` is zero.
__device__ __forceinline__ void product_of_nonzero(float (&acc)[kPer][kPer], const Shared& s, int row,
                                                   int column) {
#pragma unroll 1
  for (int k = 0; k < kKeys; ++k) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float weight = s.p_t[k][row + i];
      if (weight == 0.0f) continue;
#pragma unroll
      for (int j = 0; j < kPer; ++j) acc[i][j] = fmaf(weight, s.v[k][column + j], acc[i][j]);
    }
  }
}

// One row of four columns of a gradient, from column c on.
__device__ __forceinline__ void write_gradient(const RowTensor& t, int64_t at, int64_t c, int64_t dim,
                                               const float (&values)[kPer], float scale, bool accumulate) {
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    if (c + j >= dim) continue;
    const float before = accumulate ? load(t.data, t.dtype, at + c + j) : 0.0f;
    store(t.data, t.dtype, at + c + j, fmaf(values[j], scale, before));
  }
}

__device__ __forceinline__ int chunks_of(const RowTensor& gradient, int64_t dim) {
  return gradient.data ? static_cast<int>((dim + kColumns - 1) / kColumns) : 0;
}

// Chunks of dV, then those of dK: a slice is kChunks of them, from `begin` on.
template <int kChunks>
class KeyTile {
 public:
  __device__ __forceinline__ KeyTile(const BackwardParams& p, Shared& s, const RowValues& rows, int begin)
      : p_(p),
        s_(s),
        rows_(rows),
        begin_(begin),
        of_dv_(chunks_of(p.dv, p.head_dim_v)),
        of_dk_(chunks_of(p.dk, p.head_dim)) {}

  // Adds what the query rows of the task, whose intervals are in shared memory, give to keys [j0, j0 + 64).
  __device__ __forceinline__ void add(int64_t j0) {
    Pairs pairs(p_, s_, rows_);
    if (!pairs.begin(j0)) return;
    float x[kPer][kPer] = {}, dropped[kPer][kPer];
    pairs.template weights<Stage::product>(x, dropped);
    const Task& t = s_.task;
    const auto lives = [&](int r) { return pairs.row_lives(r); };
    if (begin_ < of_dv_) {
      publish(dropped);
      const int64_t at = p_.dout.at(t.b, t.s.q_begin + t.row0, t.head);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (begin_ + c >= of_dv_) continue;  // no break: the accumulators need constant indices
        accumulate(sum_[c], p_.dout, at, lives, (begin_ + c) * kColumns, p_.head_dim_v);
      }
    }
    if (begin_ + kChunks <= of_dv_ || of_dk_ == 0) return;
    pairs.score_gradients(x);
    publish(x);
    const int64_t at = p_.q.at(t.b, t.s.q_begin + t.row0, t.head);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int chunk = begin_ + c - of_dv_;
      if (chunk < 0 || chunk >= of_dk_) continue;
      accumulate(sum_[c], p_.q, at, lives, chunk * kColumns, p_.head_dim);
    }
  }

  // Keys j0 .. of the `rows` that the call owns.
  __device__ __forceinline__ void write(const Sequence& q, int64_t b, int64_t head_kv, int64_t j0) const {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int64_t j = j0 + row_ + i;
      if (j >= q.rows_kv) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int chunk = begin_ + c, dk_chunk = chunk - of_dv_;
        if (chunk < of_dv_)
          write_gradient(p_.dv, p_.dv.at(b, q.kv_begin + j, head_kv), chunk * kColumns + column_,
                         p_.head_dim_v, sum_[c][i], 1.0f, p_.accumulate);
        else if (dk_chunk < of_dk_)
          write_gradient(p_.dk, p_.dk.at(b, q.kv_begin + j, head_kv), dk_chunk * kColumns + column_,
                         p_.head_dim, sum_[c][i], p_.scale, p_.accumulate);
      }
    }
  }

 private:
  // [query][key] in p_t.
  __device__ __forceinline__ void publish(const float (&x)[kPer][kPer]) {
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      *reinterpret_cast<float4*>(&s_.p_t[row_ + i][column_]) =
          make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
  }

  template <typename Inside>
  __device__ __forceinline__ void accumulate(float (&sum)[kPer][kPer], const RowTensor& t, int64_t at,
                                             Inside inside, int c0, int64_t dim) {
    load_values(s_.v, t, at, inside, c0, dim);
    __syncthreads();
    product(sum, s_.p_t, s_.v, row_, column_, kRows);
    __syncthreads();
  }

  const BackwardParams& p_;
  Shared& s_;
  const RowValues& rows_;
  const int begin_, of_dv_, of_dk_;
  const int row_ = threadIdx.x / 16 * kPer, column_ = threadIdx.x % 16 * kPer;  // of the sums: key, column
  float sum_[kChunks][kPer][kPer] = {};
};

// Query tiles that band and lengths let see keys [j0, j0 + 64) of the sequence; kv_ranges only narrow them.
__device__ __forceinline__ Interval query_tiles(const BackwardParams& p, const Sequence& q, int64_t j0) {
  if (j0 >= q.kv_last || j0 + kKeys <= q.kv_first) return {};
  int64_t first = 0, last = q.len_q;
  if (p.window_right >= 0) first = max(first, j0 - p.window_right - q.q_offset);
  if (p.window_left >= 0) last = min(last, j0 + kKeys + p.window_left - q.q_offset);
  if (first >= last) return {};
  return {first / kRows, (last + kRows - 1) / kRows};
}

// What of a tile's turns is to be made: all where `marks` is null, else the bits of a word a tile of each
// head, as sm80/backward_f32_keys.cuh leaves it. Turns past the last bit have that one.
struct Turns {
  uint32_t marked;

  __device__ __forceinline__ Turns(const uint32_t* marks, int64_t tile) : marked(marks ? marks[tile] : ~0u) {}
  __device__ __forceinline__ bool take(int turn) const { return marked >> min(turn, 31) & 1; }
};

template <int kChunks>
__global__ void __launch_bounds__(kThreads, 1)
    backward_keys(const __grid_constant__ BackwardParams p, int64_t tiles, int slices, int64_t tasks,
                  const uint32_t* marks) {
  Shared& s = in_shared<Shared>();
  __shared__ RowValues values;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int slice = static_cast<int>(task % slices);
    const int64_t head_kv = task / slices / tiles % p.heads_kv, b = task / slices / tiles / p.heads_kv;
    const Turns turns(marks, (b * p.heads_kv + head_kv) * tiles + task / slices % tiles);
    if (!turns.marked) continue;
    const Sequence q = sequence_of(p, b);
    // A packed sequence that is longer than it was planned for takes more than one turn.
    int turn = 0;
    for (int64_t j0 = task / slices % tiles * kKeys; j0 < q.rows_kv; j0 += tiles * kKeys) {
      if (!turns.take(turn++)) continue;
      KeyTile<kChunks> tile(p, s, values, slice * kChunks);
      const Interval rows = query_tiles(p, q, j0);
      for (int64_t head = head_kv * p.group(); head < (head_kv + 1) * p.group(); ++head) {
        for (int64_t i = rows.lo; i < rows.hi; ++i)
          if (begin_rows(p, b, head, i * kRows, s, values)) tile.add(j0);
      }
      tile.write(q, b, head_kv, j0);
    }
  }
}

// Chunks of dQ from `begin` on, of the task's rows.
template <int kChunks>
class QueryTile {
 public:
  __device__ __forceinline__ QueryTile(const BackwardParams& p, Shared& s, const RowValues& rows, int begin)
      : p_(p), s_(s), rows_(rows), begin_(begin), chunks_(chunks_of(p.dq, p.head_dim)) {}

  // Adds what keys [j0, j0 + 64) give.
  __device__ __forceinline__ void add(int64_t j0) {
    Pairs pairs(p_, s_, rows_);
    if (!pairs.begin(j0)) return;
    float x[kPer][kPer] = {}, dropped[kPer][kPer];
    pairs.template weights<Stage::product>(x, dropped);
    pairs.score_gradients(x);
#pragma unroll
    for (int j = 0; j < kPer; ++j)  // [key][query] in p_t
      *reinterpret_cast<float4*>(&s_.p_t[column_ + j][row_]) =
          make_float4(x[0][j], x[1][j], x[2][j], x[3][j]);
    const Task& t = s_.task;
    const int64_t k_at = p_.k.at(t.b, t.s.kv_begin + j0, t.head / p_.group());
    const auto inside = [&](int j) { return pairs.key_inside(j); };
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (begin_ + c >= chunks_) continue;  // no break: the accumulators need constant indices
      const bool bad = load_values(s_.v, p_.k, k_at, inside, (begin_ + c) * kColumns, p_.head_dim);
      if (__syncthreads_or(bad)) {
        product_of_nonzero(sum_[c], s_, row_, column_);
      } else {
        product(sum_[c], s_.p_t, s_.v, row_, column_, kKeys);
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ void write() const {
    const Task& t = s_.task;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (row_ + i >= t.rows) continue;
      const int64_t at = p_.dq.at(t.b, t.s.q_begin + t.row0 + row_ + i, t.head);
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        if (begin_ + c < chunks_)
          write_gradient(p_.dq, at, (begin_ + c) * kColumns + column_, p_.head_dim, sum_[c][i], p_.scale,
                         p_.accumulate);
    }
  }

 private:
  const BackwardParams& p_;
  Shared& s_;
  const RowValues& rows_;
  const int begin_, chunks_;
  const int row_ = threadIdx.x / 16 * kPer, column_ = threadIdx.x % 16 * kPer;
  float sum_[kChunks][kPer][kPer] = {};
};

template <int kChunks>
__global__ void __launch_bounds__(kThreads, 1)
    backward_queries(const __grid_constant__ BackwardParams p, int64_t tiles, int slices, int64_t tasks,
                     const uint32_t* marks) {
  Shared& s = in_shared<Shared>();
  __shared__ RowValues values;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int slice = static_cast<int>(task % slices);
    const int64_t head = task / slices / tiles % p.heads_q, b = task / slices / tiles / p.heads_q;
    // The last rows first: under a causal mask they are the longest.
    const int64_t first = tiles - 1 - task / slices % tiles;
    const Turns turns(marks, (b * p.heads_q + head) * tiles + first);
    if (!turns.marked) continue;
    int turn = 0;
    for (int64_t row0 = first * kRows; begin_rows(p, b, head, row0, s, values); row0 += tiles * kRows) {
      if (!turns.take(turn++)) continue;
      QueryTile<kChunks> tile(p, s, values, slice * kChunks);
      const Interval keys = s.task.bounds.key_tiles(kKeys);
      for (int64_t j = keys.lo; j < keys.hi; ++j) tile.add(j * kKeys);
      tile.write();
    }
  }
}

}  // namespace tilewise::cuda::simt
#endif  // TILEWISE_CUDA_SIMT_BACKWARD_CUH_
