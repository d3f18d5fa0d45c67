// The score class general: bias, dense masks, segment ids, kv_ranges and dropout, on one fragment of 16
// queries and 64 keys a warp.
//
// Each thread keeps one bit a pair: seen or not. Where a whole tile lies inside the intervals of its rows and
// its segments do not differ, the bits are all ones or come from the mask, two keys a load; else pairs are
// asked one by one. Then the bias is added, two keys a load or only where a pair is seen, so nothing outside
// a tensor is read. Intervals, tiles and what is cleared serve the backward's walks over keys too.
#ifndef TILEWISE_CUDA_SM80_FORWARD_GENERAL_H_
#define TILEWISE_CUDA_SM80_FORWARD_GENERAL_H_

#include "cuda/sm80/forward_config.cuh"
#include "cuda/tile/pairs.cuh"
#include "cuda/tile/score.cuh"

namespace tilewise::sm80 {

// Intervals of the tile's rows into shared memory, and what they say of key tiles into the work. By all
// threads; ends with a barrier.
template <typename Shared>
__device__ __forceinline__ void make_general_work(Shared& s, const ForwardParams& p) {
  using C = typename Shared::Config;
  auto& g = s.general;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    g.lo_min = g.hi_min = g.segment_low = INT32_MAX;
    g.lo_max = g.hi_max = 0;
    g.segment_high = INT32_MIN;
  }
  __syncthreads();
  const Sequence sequence = sequence_of(p, s.work.batch);
  for (int r = thread; r < C::kTileM; r += C::kThreads) {
    const int row = s.work.row + r;
    const Interval keys = visible_keys(p, sequence, s.work.batch, row);
    g.lo[r] = static_cast<int32_t>(keys.lo);
    g.hi[r] = static_cast<int32_t>(keys.hi);
    if (row >= s.work.len_q) continue;
    const bool sees = keys.hi > keys.lo;
    atomicMin(&g.hi_min, sees ? g.hi[r] : 0);
    if (sees) {
      atomicMin(&g.lo_min, g.lo[r]);
      atomicMax(&g.lo_max, g.lo[r]);
      atomicMax(&g.hi_max, g.hi[r]);
    }
    if (p.segment_ids_q.data) {
      const auto id =
          static_cast<int32_t>(read_row_index(p.segment_ids_q, s.work.batch, s.work.q_begin, row));
      atomicMin(&g.segment_low, id);
      atomicMax(&g.segment_high, id);
    }
  }
  __syncthreads();
  if (thread == 0) {
    tile::Work& w = s.work;
    const bool empty = g.hi_max == 0;
    w.see_first = empty ? 0 : g.lo_min;
    w.see_last = g.hi_max;
    w.tile_first = w.see_first / C::kTileN;
    w.tile_last = (w.see_last + C::kTileN - 1) / C::kTileN;
    w.full_first = (g.lo_max + C::kTileN - 1) / C::kTileN;
    w.full_last = empty ? 0 : g.hi_min / C::kTileN;
  }
  __syncthreads();
}

// A key tile as segments see it.
struct Found {
  int tile = -1;       // -1: none
  bool mixed = false;  // its pairs are of equal and of different segments
};

// The last key tile before `before` that segments do not rule out. The same in the whole block.
template <typename Shared>
__device__ __forceinline__ Found find_tile(const Shared& s, const ForwardParams& p, int before) {
  using C = typename Shared::Config;
  const tile::Work& w = s.work;
  Found found;
  for (int at = before - 1; at >= w.tile_first; --at) {
    if (p.segment_ids_q.data) {
      int32_t low = INT32_MAX, high = INT32_MIN;
#pragma unroll
      for (int i = 0; i < C::kTileN; i += 32) {
        const int key = at * C::kTileN + i + static_cast<int>(threadIdx.x) % 32;
        if (key < w.see_first || key >= w.see_last) continue;
        const auto id = static_cast<int32_t>(read_row_index(p.segment_ids_kv, w.batch, w.kv_begin, key));
        low = min(low, id);
        high = max(high, id);
      }
      low = __reduce_min_sync(~0u, low);
      high = __reduce_max_sync(~0u, high);
      if (high < s.general.segment_low || low > s.general.segment_high) continue;
      found.mixed = low != high || s.general.segment_low != s.general.segment_high;
    }
    found.tile = at;
    return found;
  }
  return found;
}

// What a thread knows of its two rows.
template <typename C>
struct GeneralRows {
  static_assert(C::kFragments == 1 && C::kTileN == 64, "a thread's pairs are the bits of a word");
  static constexpr int kCount = C::kTileN / 2;

  const ForwardArgs& args;
  const ForwardShared<C>& shared;
  int row[2];  // rows past the last query stand for it: their results go nowhere
  int lo[2], hi[2];
  DropoutRow dropout[2];

  __device__ __forceinline__ GeneralRows(const ForwardArgs& a, const ForwardShared<C>& s, int row_in_tile)
      : args(a), shared(s) {
    const tile::Work& w = s.work;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = min(w.row + row_in_tile + 8 * r, w.len_q - 1);
      lo[r] = s.general.lo[row[r] - w.row];
      hi[r] = s.general.hi[row[r] - w.row];
      if (a.params.dropout_threshold) dropout[r] = dropout_row_of(a.params, w.batch, w.head, row[r]);
    }
  }

  // Raw products to natural scores, -inf where hidden. `key` is of the lane's first column.
  __device__ __forceinline__ void finish_scores(float (&r_s)[kCount], int key, bool full, bool mixed) const {
    const ForwardParams& p = args.params;
    const tile::Work& w = shared.work;
    const float slope = p.alibi_slope(w.batch, w.head);
    // In the tile's first row's terms, as shape() counts.
    tile::shape(r_s, p.scale, p.softcap, slope, row[0] + w.q_offset, w.beyond, key, 0);
    uint32_t seen = ~0u;
    if (!full || mixed || (p.mask.data && !args.paired_mask))
      seen = seen_by_asking(key);
    else if (p.mask.data)
      seen = seen_by_mask(key);
    if (p.bias.data) {
      if (!full || !args.paired_bias)
        add_seen_bias(r_s, seen, key);
      else
        add_bias(r_s, key);
    }
    if (seen == ~0u) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!(seen >> i & 1)) r_s[i] = tile::kMinusInfinity;
    }
  }

  // Weights of dropped pairs become 0; what is kept is scaled at the end.
  __device__ __forceinline__ void drop(float (&r_s)[kCount], int key) const {
    const uint32_t threshold = args.params.dropout_threshold;
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const uint32_t pair =
          dropout_pair(dropout[i / 2 % 2], static_cast<uint32_t>(key + tile::fragment_column(i)) >> 1);
      if ((pair & 0xffffu) < threshold) r_s[i] = 0.0f;
      if (pair >> 16 < threshold) r_s[i + 1] = 0.0f;
    }
  }

 private:
  __device__ __forceinline__ uint32_t seen_by_asking(int key) const {
    uint32_t seen = 0;
#pragma unroll 4
    for (int i = 0; i < kCount; ++i) {
      const int r = i / 2 % 2, column = key + i / 4 * 8 + i % 2;
      if (column < (r ? lo[1] : lo[0]) || column >= (r ? hi[1] : hi[0])) continue;
      const ForwardParams& p = args.params;
      const tile::Work& w = shared.work;
      const int of_row = r ? row[1] : row[0];
      if (!pair_allowed(p, w.batch, w.head, w.q_begin, w.kv_begin, of_row, column)) continue;
      seen |= 1u << i;
    }
    return seen;
  }

  // Keys are neighbours in memory. Bytes: rows begin at even addresses. Bits: at words of 32.
  __device__ __forceinline__ uint32_t seen_by_mask(int key) const {
    const ScoreTensor& mask = args.params.mask;
    const tile::Work& w = shared.work;
    uint32_t seen = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t at =
          w.batch * mask.batch_stride + w.head * mask.head_stride + row[r] * mask.row_stride + key;
      if (mask.dtype == DType::bit) {
        const auto* g_words = static_cast<const uint32_t*>(mask.data) + (at >> 5);
        const int shift = static_cast<int>(at & 31);  // 0, 2, 4, 6: the lane's first column
        const uint32_t words[2] = {g_words[0] >> shift, g_words[1] >> shift};
#pragma unroll
        for (int j = 0; j < kCount / 4; ++j) seen |= (words[j / 4] >> (8 * (j % 4)) & 3u) << (4 * j + 2 * r);
      } else {
        const auto* g_pairs = static_cast<const uint16_t*>(mask.data) + (at >> 1);
#pragma unroll
        for (int j = 0; j < kCount / 4; ++j) {
          const uint32_t pair = g_pairs[4 * j];
          if (pair & 0xffu) seen |= 1u << (4 * j + 2 * r);
          if (pair & 0xff00u) seen |= 2u << (4 * j + 2 * r);
        }
      }
    }
    return seen;
  }

  // NaN - inf is NaN, and -inf hides.
  static __device__ __forceinline__ void add(float& score, float bias) {
    score = bias == tile::kMinusInfinity ? bias : score + bias;
  }

  __device__ __forceinline__ void add_bias(float (&r_s)[kCount], int key) const {
    const ScoreTensor& bias = args.params.bias;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t at = tile::bias_row(args.params, shared.work, row[r]) + key;
      if (bias.dtype == DType::f32) {
        const auto* g_pairs = reinterpret_cast<const float2*>(static_cast<const float*>(bias.data) + at);
#pragma unroll
        for (int j = 0; j < kCount / 4; ++j) {
          const float2 pair = g_pairs[4 * j];
          add(r_s[4 * j + 2 * r], pair.x);
          add(r_s[4 * j + 2 * r + 1], pair.y);
        }
      } else {
        const auto* g_pairs = reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(bias.data) + at);
#pragma unroll
        for (int j = 0; j < kCount / 4; ++j) {
          const float2 pair = ptx::unpack(g_pairs[4 * j], bias.dtype == DType::f16);
          add(r_s[4 * j + 2 * r], pair.x);
          add(r_s[4 * j + 2 * r + 1], pair.y);
        }
      }
    }
  }

  __device__ __forceinline__ void add_seen_bias(float (&r_s)[kCount], uint32_t seen, int key) const {
    const ScoreTensor& bias = args.params.bias;
    const int64_t at[2] = {tile::bias_row(args.params, shared.work, row[0]) + key * bias.key_stride,
                           tile::bias_row(args.params, shared.work, row[1]) + key * bias.key_stride};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (seen >> i & 1)
        add(r_s[i],
            cuda::load(bias.data, bias.dtype, at[i / 2 % 2] + tile::fragment_column(i) * bias.key_stride));
    }
  }
};

// Zeroes the rows, in a tile of keys or values, of keys that no row of the block sees. Out of line: rare. By
// all threads, between two barriers of its own.
template <typename Tile, typename Shared>
__device__ __noinline__ void clear_unseen(Shared& s, const ForwardParams& p, uint8_t* s_tile, int key) {
  using C = typename Shared::Config;
  auto& g = s.general;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < C::kTileN) g.seen[thread] = 0;
  __syncthreads();
  const int column = thread % C::kTileN;
  for (int r = thread / C::kTileN; r < C::kTileM && s.work.row + r < s.work.len_q;
       r += C::kThreads / C::kTileN) {
    if (key + column < g.lo[r] || key + column >= g.hi[r]) continue;
    if (tile::GeneralPairs{p, s.work, s.work.row + r}.sees(key + column)) g.seen[column] = 1;
  }
  __syncthreads();
  constexpr int kChunks = Tile::kPanels * 8;
  for (int i = thread; i < C::kTileN * kChunks; i += C::kThreads) {
    if (!g.seen[i / kChunks])
      *reinterpret_cast<uint4*>(s_tile + Tile::chunk_offset(i / kChunks, i % kChunks)) = uint4{};
  }
  __syncthreads();
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_GENERAL_H_
