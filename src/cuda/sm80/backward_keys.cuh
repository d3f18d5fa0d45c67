// dK and dV of the sm_80 backward: a block owns a tile of keys of a key head and walks the tiles of queries
// that see them, query head by query head of the group, so that the sums never leave registers. Where both do
// not fit there, a launch makes one of them.
//
//   S^T = K Q^T, P = e^(S - lse)      dV += P^T dO      dP^T = V dO^T, dS = P o (dP - D)      dK += dS^T Q
//
// Roles. Four warps alike, 16 keys a fragment, one or two fragments each. Keys are the rows of all four
// products, so P and dS are A operands as they stand in registers: no warp needs another's.
//
// Shared memory. K and V of the tile; one or two stages of Q and dO with their lse and D.
//
// Invariants. With two stages a tile is copied under the step before it, and one barrier a step stands
// between the last read of a buffer and its next copy; with one stage, two. Keys that no query sees and
// queries that see no key of the tile by band and lengths are zero in shared memory. Where a sum is not
// finite all the same, the block walks once more and clears queries that see nothing: their q and dO may be
// anything. Sums add up in one order, whatever runs beside: the same bits every time.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_KEYS_H_
#define TILEWISE_CUDA_SM80_BACKWARD_KEYS_H_

#include "cuda/sm80/backward_pairs.cuh"
#include "cuda/sm80/forward_load.cuh"
#include "cuda/sm80/forward_product.cuh"
#include "cuda/tile/store.cuh"

namespace tilewise::sm80 {

// The rows of GeneralFragment: columns of a fragment, in shared memory.
template <typename Shared>
struct ColumnQueries {
  const Shared& shared;
  const int stage, column;  // of element 0

  __device__ __forceinline__ int at(int i) const { return column + ByKeys::query_step(i); }
  __device__ __forceinline__ float lse(int i) const { return lse_or_far(shared.lse[stage][at(i)]); }
  __device__ __forceinline__ float delta(int i) const { return shared.delta[stage][at(i)]; }
  __device__ __forceinline__ int lo(int i) const { return shared.general[stage].lo[at(i)]; }
  __device__ __forceinline__ int hi(int i) const { return shared.general[stage].hi[at(i)]; }
  __device__ __forceinline__ DropoutRow dropout(int i) const {
    return {shared.general[stage].dropout_a[at(i)], shared.general[stage].dropout_b[at(i)]};
  }
};

// SharedOf: fp32 rows (backward_f32_keys.cuh) have a plan of their own, and make their products otherwise.
template <typename C, typename SharedOf = KeyShared<C>>
struct BackwardKeys {
  using T = typename C::Element;
  using Shared = SharedOf;
  static constexpr int kFragments = C::kFragments, kScores = C::kChunk / 2;

  // A tile of queries of a head of the group, as segments see it.
  struct Step {
    int head, tile;  // head: of the sequence; past the group: there is no more
    bool mixed;
  };

  const BackwardArgs& args;
  Shared& shared;
  const Gradient gradient;
  int32_t segment_low = INT32_MAX, segment_high = INT32_MIN;  // of the tile's keys
  float r_dv[kFragments][C::kDimV / 2];
  float r_own_dk[C::kOneSum ? 1 : kFragments][C::kOneSum ? 1 : C::kDim / 2];

  __device__ __forceinline__ BackwardKeys(const BackwardArgs& a, Shared& s)
      : args(a), shared(s), gradient(a.gradient) {}

  // Work is in shared memory.
  __device__ __forceinline__ void run() {
    if constexpr (C::kGeneral) {
      if (args.params.segment_ids_q.data) look_at_segments();
    }
#pragma unroll 1
    for (bool careful = false;; careful = true) {
      walk(careful);
      if (!__syncthreads_or(any_not_finite(r_dv) || any_not_finite(dk())) || careful) break;
    }
    write();
  }

 protected:
  __device__ __forceinline__ const tile::KeyWork& work() const { return shared.work; }
  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }
  static __device__ __forceinline__ int warp_row_now() { return ptx::thread_afresh() / 32 * 16 * kFragments; }
  // One sum: the registers are dV's or dK's.
  __device__ __forceinline__ auto& dk() {
    if constexpr (C::kOneSum) {
      static_assert(C::kDim == C::kDimV);
      return r_dv;
    } else {
      return r_own_dk;
    }
  }
  __device__ __forceinline__ bool wants_dv() const { return gradient != Gradient::dk; }
  __device__ __forceinline__ bool wants_dk() const { return gradient != Gradient::dv; }

  __device__ __forceinline__ void look_at_segments() {
    const tile::KeyWork& w = work();
#pragma unroll
    for (int i = 0; i < C::kTileN; i += 32) {
      const int key = w.key + i + lane_now();
      if (key < w.see_first || key >= w.see_last) continue;
      const auto id =
          static_cast<int32_t>(read_row_index(args.params.segment_ids_kv, w.batch, w.kv_begin, key));
      segment_low = min(segment_low, id);
      segment_high = max(segment_high, id);
    }
    segment_low = __reduce_min_sync(~0u, segment_low);
    segment_high = __reduce_max_sync(~0u, segment_high);
  }

  // The first tile of queries from `at` on that segments do not rule out. The same in the whole block.
  __device__ __forceinline__ Step find(Step at) const {
    const tile::KeyWork& w = work();
    const int end = (w.head + 1) * args.queries_per_key_head;
    for (; at.head < end; ++at.head, at.tile = w.tile_first) {
      for (; at.tile < w.tile_last; ++at.tile) {
        at.mixed = false;
        if (!C::kGeneral || !args.params.segment_ids_q.data) return at;
        int32_t low = INT32_MAX, high = INT32_MIN;
#pragma unroll
        for (int i = 0; i < C::kTileM; i += 32) {
          const int row = at.tile * C::kTileM + i + lane_now();
          if (row < w.row_first || row >= w.row_last) continue;
          const auto id =
              static_cast<int32_t>(read_row_index(args.params.segment_ids_q, w.batch, w.q_begin, row));
          low = min(low, id);
          high = max(high, id);
        }
        low = __reduce_min_sync(~0u, low);
        high = __reduce_max_sync(~0u, high);
        if (high < segment_low || low > segment_high) continue;
        at.mixed = low != high || segment_low != segment_high;
        return at;
      }
    }
    return at;
  }

  // Careful: queries that see nothing are cleared.
  __device__ __forceinline__ void walk(bool careful) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < C::kDimV / 2; ++i) r_dv[f][i] = 0.0f;
      if constexpr (!C::kOneSum) {
#pragma unroll
        for (int i = 0; i < C::kDim / 2; ++i) r_own_dk[f][i] = 0.0f;
      }
    }
    const tile::KeyWork& w = work();
    const int end = (w.head + 1) * args.queries_per_key_head;
    Step at = find({w.head * args.queries_per_key_head, w.tile_first, false});
    if (at.head >= end) return;
    load_keys();
    load_queries(at, 0);
    int stage = 0;
#pragma unroll 1
    while (at.head < end) {
      const Step next = find({at.head, at.tile + 1, false});
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (C::kStages == 2 && next.head < end) load_queries(next, stage ^ 1);
      if (careful) clear_blind(stage);
#pragma unroll 1
      for (int chunk = 0; chunk < C::kTileM; chunk += C::kChunk) {
        if constexpr (C::kGeneral)
          general_step(at, stage, chunk, careful);
        else
          step(at, stage, chunk);
      }
      if (C::kStages == 1) {
        __syncthreads();
        if (next.head < end) load_queries(next, 0);
      } else {
        stage ^= 1;
      }
      at = next;
    }
  }

  // The first query and key of this thread in a chunk.
  __device__ __forceinline__ ByKeys place(Step at, int chunk) const {
    const int lane = lane_now();
    return {at.tile * C::kTileM + chunk + 2 * (lane % 4), work().key + warp_row_now() + lane / 4};
  }

  __device__ __forceinline__ void step(Step at, int stage, int chunk) {
    float r_s[kFragments][kScores], r_dp[kFragments][kScores];
    multiply<C::kDim, typename C::KTile, typename C::QTile>(r_s, shared.k, shared.q[stage], chunk);
    take_weights(r_s, stage, chunk, work().is_full(at.tile), place(at, chunk));
    if (wants_dv()) add<typename C::OTile>(r_dv, r_s, shared.dout[stage], chunk);
    if (!wants_dk()) return;
    multiply<C::kDimV, typename C::VTile, typename C::OTile>(r_dp, shared.v, shared.dout[stage], chunk);
    take_gradients(r_s, r_dp, stage, chunk);
    add<typename C::QTile>(dk(), r_s, shared.q[stage], chunk);
  }

  __device__ __forceinline__ void general_step(Step at, int stage, int chunk, bool careful) {
    static_assert(kFragments == 1);
    const ColumnQueries<Shared> columns{shared, stage, chunk + 2 * (lane_now() % 4)};
    GeneralFragment<ByKeys, ColumnQueries<Shared>, kScores> pairs{args, work(), columns, at.head,
                                                                  place(at, chunk)};
    pairs.fetch(work().is_full(at.tile) && !args.params.kv_ranges.data, at.mixed);
    float r_s[1][kScores], r_dp[1][kScores];
    multiply<C::kDim, typename C::KTile, typename C::QTile>(r_s, shared.k, shared.q[stage], chunk);
    pairs.weigh(r_s[0]);
    if (wants_dv()) {
      uint32_t words[kScores / 2];
      pairs.template round_weights<T>(words, r_s[0]);
      const int lane = lane_now();
      const LaneAddress rows(shared.dout[stage], chunk + lane % 16, lane / 16);
#pragma unroll
      for (int k = 0; k < C::kChunk / 16; ++k) {
        const uint32_t a[1][4] = {{words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]}};
        add_rows<T, typename C::OTile>(r_dv, a, rows, k);
      }
    }
    if (!wants_dk()) return;
    multiply<C::kDimV, typename C::VTile, typename C::OTile>(r_dp, shared.v, shared.dout[stage], chunk);
    pairs.template score_gradients<GradientOf::product>(r_s[0], r_dp[0], careful);
    add<typename C::QTile>(dk(), r_s, shared.q[stage], chunk);
  }

  // R = A B^T: rows of the warp and queries of the chunk.
  template <int kColumns, typename ATile, typename BTile>
  static __device__ __forceinline__ void multiply(float (&r)[kFragments][kScores], const uint8_t* s_a,
                                                  const uint8_t* s_b, int chunk) {
    const int lane = lane_now(), half = lane / 16;
    row_products<T, C::kChunk, kColumns / 16, ATile, BTile>(
        r, LaneAddress(s_a, warp_row_now() + lane % 16, half),
        LaneAddress(s_b, chunk + half * 8 + lane % 8, lane / 8 % 2));
  }

  // Products to P.
  __device__ __forceinline__ void take_weights(float (&r_s)[kFragments][kScores], int stage, int chunk,
                                               bool full, ByKeys first) {
    const int column = chunk + 2 * (lane_now() % 4);
#pragma unroll
    for (int n = 0; n < C::kChunk / 8; ++n) {
      const float2 lse = *reinterpret_cast<const float2*>(&shared.lse[stage][column + 8 * n]);
      const float shift[2] = {-lse_or_far(lse.x) * kLog2E, -lse_or_far(lse.y) * kLog2E};
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          r_s[f][4 * n + i] = ptx::exp2_approx(fmaf(r_s[f][4 * n + i], args.scale_log2, shift[i % 2]));
      }
    }
    if (full) return;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) tile::hide_keys(r_s[f], work(), first.query, first.key + 16 * f, 0);
  }

  // P and dP to dS.
  __device__ __forceinline__ void take_gradients(float (&r_s)[kFragments][kScores],
                                                 const float (&r_dp)[kFragments][kScores], int stage,
                                                 int chunk) {
    const int column = chunk + 2 * (lane_now() % 4);
#pragma unroll
    for (int n = 0; n < C::kChunk / 8; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(&shared.delta[stage][column + 8 * n]);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) r_s[f][4 * n + i] *= r_dp[f][4 * n + i] - (i % 2 ? delta.y : delta.x);
      }
    }
  }

  // Sum += weights rows, the queries of the chunk.
  template <typename Tile, int kRows, int kCount>
  static __device__ __forceinline__ void add(float (&sum)[kRows][kCount],
                                             const float (&weights)[kFragments][kScores],
                                             const uint8_t* s_rows, int chunk) {
    const int lane = lane_now();
    add_rounded<T, Tile>(sum, weights, LaneAddress(s_rows, chunk + lane % 16, lane / 16));
  }

  __device__ __forceinline__ void load_keys() {
    const BackwardParams& p = args.params;
    const tile::KeyWork& w = work();
    const int first = w.see_first - w.key, last = w.see_last - w.key;
    load_tile<T, C::kTileN, C::kDim, C::kThreads>(
        shared.k, static_cast<const T*>(p.k.data) + p.k.at(w.batch, w.kv_begin + w.key, w.head),
        p.k.row_stride, first, last, static_cast<int>(p.head_dim), args.wide_k);
    load_tile<T, C::kTileN, C::kDimV, C::kThreads>(
        shared.v, static_cast<const T*>(p.v.data) + p.v.at(w.batch, w.kv_begin + w.key, w.head),
        p.v.row_stride, first, last, static_cast<int>(p.head_dim_v), args.wide_v);
  }

  __device__ __forceinline__ void load_queries(Step at, int stage) {
    const BackwardParams& p = args.params;
    const tile::KeyWork& w = work();
    const int row = at.tile * C::kTileM, first = w.row_first - row, last = w.row_last - row;
    load_tile<T, C::kTileM, C::kDim, C::kThreads>(
        shared.q[stage], static_cast<const T*>(p.q.data) + p.q.at(w.batch, w.q_begin + row, at.head),
        p.q.row_stride, first, last, static_cast<int>(p.head_dim), args.wide_q);
    load_tile<T, C::kTileM, C::kDimV, C::kThreads>(
        shared.dout[stage], static_cast<const T*>(p.dout.data) + p.dout.at(w.batch, w.q_begin + row, at.head),
        p.dout.row_stride, first, last, static_cast<int>(p.head_dim_v), args.wide_dout);
    // The first kTileM tasks are lse, the others D.
#pragma unroll
    for (int i = 0; i < 2 * C::kTileM; i += C::kThreads) {
      const int task = i + ptx::thread_afresh(), r = task % C::kTileM;
      if (2 * C::kTileM < C::kThreads && task >= 2 * C::kTileM) break;
      const bool exists = r >= first && r < last;
      const int64_t of_row = w.q_begin + (exists ? row + r : 0);
      const bool of_lse = task < C::kTileM;
      ptx::cp_async_4(ptx::shared_address(of_lse ? &shared.lse[stage][r] : &shared.delta[stage][r]),
                      of_lse ? &p.lse.at(w.batch, of_row, at.head) : &p.delta.at(w.batch, of_row, at.head),
                      exists ? 4 : 0);
    }
    ptx::cp_async_commit();
    if constexpr (C::kGeneral) {
      const int r = ptx::thread_afresh();
      static_assert(C::kTileM <= C::kThreads);
      if (r < C::kTileM) note_query(at, row + r, shared.general[stage], r, r >= first && r < last);
    }
  }

  __device__ __forceinline__ void note_query(Step at, int row, GeneralQueries<C::kTileM>& general, int r,
                                             bool exists) {
    const BackwardParams& p = args.params;
    const tile::KeyWork& w = work();
    int lo = exists ? max(w.kv_first, row + w.lo_shift) : 0,
        hi = exists ? min(w.kv_last, row + w.hi_shift) : 0;
    if (exists && p.kv_ranges.data) {
      constexpr int64_t kMost = tile::kFar;
      const int64_t first = read_row_index(p.kv_ranges, w.batch, w.q_begin, row, 0);
      const int64_t last = read_row_index(p.kv_ranges, w.batch, w.q_begin, row, 1);
      lo = max(lo, static_cast<int>(clamp_index(first, 0, kMost)));
      hi = min(hi, static_cast<int>(clamp_index(last, 0, kMost)));
    }
    general.lo[r] = lo;
    general.hi[r] = hi;
    if (exists && p.dropout_threshold) {
      const DropoutRow dropout = dropout_row_of(p, w.batch, at.head, row);
      general.dropout_a[r] = dropout.a;
      general.dropout_b[r] = dropout.b;
    }
  }

  // Between two barriers, of which the walk has the first.
  __device__ __forceinline__ void clear_blind(int stage) {
    constexpr int kOfQ = C::QTile::kPanels * 8, kAll = kOfQ + C::OTile::kPanels * 8;
#pragma unroll 1
    for (int i = ptx::thread_afresh(); i < C::kTileM * kAll; i += C::kThreads) {
      const int r = i / kAll, chunk = i % kAll;
      bool blind = shared.lse[stage][r] == kNegativeInfinity;
      if constexpr (C::kGeneral) blind = blind || shared.general[stage].hi[r] <= shared.general[stage].lo[r];
      if (!blind) continue;
      uint8_t* s_at = chunk < kOfQ ? shared.q[stage] + C::QTile::chunk_offset(r, chunk)
                                   : shared.dout[stage] + C::OTile::chunk_offset(r, chunk - kOfQ);
      *reinterpret_cast<uint4*>(s_at) = uint4{};
    }
    __syncthreads();
  }

  template <int kRows, int kCount>
  __device__ __forceinline__ void write_sum(const float (&sum)[kRows][kCount], float scale,
                                            const RowTensor& to, int64_t dim, bool wide) {
    const tile::KeyWork& w = work();
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const int key = w.key + warp_row_now() + 16 * f + lane_now() / 4;
      const int columns[2] = {key < w.rows_kv ? static_cast<int>(dim) : 0,
                              key + 8 < w.rows_kv ? static_cast<int>(dim) : 0};
      tile::store_gradient<T>(sum[f], scale, to, to.at(w.batch, w.kv_begin + key, w.head), wide,
                              args.params.accumulate, columns, lane_now());
    }
  }

  __device__ __forceinline__ void write() {
    const BackwardParams& p = args.params;
    if (wants_dv()) write_sum(r_dv, 1.0f, p.dv, p.head_dim_v, args.wide_dv);
    if (wants_dk()) write_sum(dk(), p.scale, p.dk, p.head_dim, args.wide_dk);
  }
};

// A block's tile of keys. A packed sequence that is longer than the plan's bound has further ones.
template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    backward_keys(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<KeyShared<C>*>(s_bytes);
  int batch, head, tile_key;
  args.order.find(static_cast<int32_t>(blockIdx.x), batch, head, tile_key);
#pragma unroll 1
  for (;; tile_key += args.order.tiles_m) {
    const bool exists = begin_work(shared.work, [&](tile::KeyWork& w) {
      return tile::make_key_work<C::kTileM, C::kTileN>(w, args.params, batch, head, tile_key);
    });
    if (!exists) return;
    BackwardKeys<C>(args, shared).run();
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_BACKWARD_KEYS_H_
