// dQ of the sm_80 backward: a block owns a tile of queries of a head and walks the tiles of keys that they
// see, from the last to the first. P and dP are made again, so that dQ needs neither scratch nor an order of
// blocks.
//
//   S = Q K^T, P = e^(S - lse)      dP = dO V^T, dS = P o (dP - D)      dQ += dS K
//
// Roles. Four warps alike, 16 queries a fragment, one or two fragments each; dS is an A operand as it stands
// in registers.
//
// Shared memory. Q and dO of the tile; one or two stages of K and V.
//
// Invariants. Those of backward_keys.cuh: with two stages one barrier a step, with one stage two. Keys that
// no query of the tile sees by band, lengths and kv_ranges are zero in shared memory: their dS is 0, but 0 *
// NaN is not. Where a sum of the general class is not finite all the same, the block walks once more and
// clears the keys that its masks hide from the whole tile.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_QUERIES_H_
#define TILEWISE_CUDA_SM80_BACKWARD_QUERIES_H_

#include "cuda/sm80/backward_pairs.cuh"
#include "cuda/sm80/forward_general.cuh"
#include "cuda/sm80/forward_load.cuh"
#include "cuda/sm80/forward_product.cuh"
#include "cuda/tile/store.cuh"

namespace tilewise::sm80 {

// What a thread knows of its rows, `row` and + 8 of each fragment. Rows that do not exist or see nothing have
// weights 0.
template <int kFragments>
struct QueryRows {
  float row_lse[kFragments][2], row_delta[kFragments][2];

  __device__ __forceinline__ void read(const BackwardParams& p, const tile::Work& w, int row) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = row + 16 * f + 8 * r;
        const bool exists = i < w.len_q;
        const float lse = exists ? p.lse.at(w.batch, w.q_begin + i, w.head) : kNegativeInfinity;
        row_lse[f][r] = lse_or_far(lse);
        row_delta[f][r] = exists ? p.delta.at(w.batch, w.q_begin + i, w.head) : 0.0f;
      }
    }
  }
  __device__ __forceinline__ bool sees(int f, int r) const { return row_lse[f][r] != -kNegativeInfinity; }
};

// The rows of GeneralFragment.
template <typename Shared>
struct FragmentQueries {
  const QueryRows<1>& rows;
  const Shared& shared;
  const int row;  // of element 0, in the tile
  DropoutRow dropped[2];

  __device__ __forceinline__ FragmentQueries(const BackwardParams& p, const QueryRows<1>& of, const Shared& s,
                                             int row_in_tile)
      : rows(of), shared(s), row(row_in_tile) {
    if (!p.dropout_threshold) return;
    for (int r = 0; r < 2; ++r)
      dropped[r] = dropout_row_of(p, s.work.batch, s.work.head, s.work.row + row + 8 * r);
  }
  __device__ __forceinline__ float lse(int i) const { return rows.row_lse[0][i / 2 % 2]; }
  __device__ __forceinline__ float delta(int i) const { return rows.row_delta[0][i / 2 % 2]; }
  __device__ __forceinline__ int lo(int i) const { return shared.general.lo[row + ByQueries::query_step(i)]; }
  __device__ __forceinline__ int hi(int i) const { return shared.general.hi[row + ByQueries::query_step(i)]; }
  __device__ __forceinline__ DropoutRow dropout(int i) const { return dropped[i / 2 % 2]; }
};

// SharedOf: fp32 rows (backward_f32_queries.cuh) have a plan of their own, and make their products otherwise.
template <typename C, typename SharedOf = QueryShared<C>>
struct BackwardQueries {
  using T = typename C::Element;
  using Shared = SharedOf;
  using OfRows = FragmentQueries<Shared>;
  static constexpr int kFragments = C::kFragments, kScores = C::kTileN / 2;

  const BackwardArgs& args;
  Shared& shared;
  QueryRows<kFragments> rows;
  float r_dq[kFragments][C::kDim / 2];

  __device__ __forceinline__ BackwardQueries(const BackwardArgs& a, Shared& s) : args(a), shared(s) {}

  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }
  static __device__ __forceinline__ int warp_row_now() { return ptx::thread_afresh() / 32 * 16 * kFragments; }

  // Work is in shared memory.
  __device__ __forceinline__ void run() {
    if constexpr (C::kGeneral) {
      make_general_work(shared, args.params);
#pragma unroll 1
      for (bool careful = false;; careful = true) {
        walk(careful);
        if (!__syncthreads_or(any_not_finite(r_dq)) || careful) break;
      }
    } else {
      walk(false);
    }
    write();
  }

  // What the work's rows have, and Q and dO on their way.
  __device__ __forceinline__ void begin_rows() {
    rows.read(args.params, work(), work().row + warp_row_now() + lane_now() / 4);
    load_queries();
  }
  // dS of a tile of keys.
  template <GradientOf kOf>
  __device__ __forceinline__ void general_gradients(float (&r_ds)[1][kScores], const OfRows& of_rows,
                                                    Found at, int stage, bool careful) {
    static_assert(kFragments == 1);
    const int lane = lane_now();
    GeneralFragment<ByQueries, OfRows, kScores> pairs{
        args, work(), of_rows, work().head,
        ByQueries{work().row + warp_row_now() + lane / 4, at.tile * C::kTileN + 2 * (lane % 4)}};
    // Full is said of the rows that exist.
    pairs.fetch(work().is_full(at.tile) && work().row + C::kTileM <= work().len_q, at.mixed);
    multiply<C::kDim, typename C::QTile, typename C::KTile>(r_ds, shared.q, shared.k[stage]);
    pairs.weigh(r_ds[0]);
    float r_dp[1][kScores];
    multiply<C::kDimV, typename C::OTile, typename C::VTile>(r_dp, shared.dout, shared.v[stage]);
    pairs.template score_gradients<kOf>(r_ds[0], r_dp[0], careful);
  }
  __device__ __forceinline__ void load_keys(int at, int stage) {
    const BackwardParams& p = args.params;
    const tile::Work& w = work();
    const int key = at * C::kTileN, first = w.see_first - key, last = w.see_last - key;
    const int kv_head = w.head / args.queries_per_key_head;
    load_tile<T, C::kTileN, C::kDim, C::kThreads>(
        shared.k[stage], static_cast<const T*>(p.k.data) + p.k.at(w.batch, w.kv_begin + key, kv_head),
        p.k.row_stride, first, last, static_cast<int>(p.head_dim), args.wide_k);
    load_tile<T, C::kTileN, C::kDimV, C::kThreads>(
        shared.v[stage], static_cast<const T*>(p.v.data) + p.v.at(w.batch, w.kv_begin + key, kv_head),
        p.v.row_stride, first, last, static_cast<int>(p.head_dim_v), args.wide_v);
    ptx::cp_async_commit();
  }

 protected:
  __device__ __forceinline__ const tile::Work& work() const { return shared.work; }

  // Careful: keys that no row sees are cleared.
  __device__ __forceinline__ void walk(bool careful) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < C::kDim / 2; ++i) r_dq[f][i] = 0.0f;
    }
    const tile::Work& w = work();
    if (w.tile_first >= w.tile_last) return;
    begin_rows();
    if constexpr (C::kGeneral) {
      const OfRows of_rows(args.params, rows, shared, warp_row_now() + lane_now() / 4);
      walk_tiles(careful, [&](Found at, int stage) { general_step(of_rows, at, stage, careful); });
    } else {
      walk_tiles(false, [&](Found at, int stage) { step(at.tile, stage); });
    }
  }

  template <typename Step>
  __device__ __forceinline__ void walk_tiles(bool careful, const Step& take_step) {
    Found at = find(work().tile_last);
    if (at.tile >= 0) load_keys(at.tile, 0);
    int stage = 0;
#pragma unroll 1
    while (at.tile >= 0) {
      const Found next = find(at.tile);
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (C::kStages == 2 && next.tile >= 0) load_keys(next.tile, stage ^ 1);
      if constexpr (C::kGeneral) {
        if (careful)
          clear_unseen<typename C::KTile>(shared, args.params, shared.k[stage], at.tile * C::kTileN);
      }
      take_step(at, stage);
      if (C::kStages == 1) {
        __syncthreads();
        if (next.tile >= 0) load_keys(next.tile, 0);
      } else {
        stage ^= 1;
      }
      at = next;
    }
    ptx::cp_async_wait<0>();
  }

  __device__ __forceinline__ Found find(int before) const {
    if constexpr (C::kGeneral) {
      return find_tile(shared, args.params, before);
    } else {
      return {before - 1 >= work().tile_first ? before - 1 : -1, false};
    }
  }

  __device__ __forceinline__ void step(int at, int stage) {
    float r_s[kFragments][kScores], r_dp[kFragments][kScores];
    multiply<C::kDim, typename C::QTile, typename C::KTile>(r_s, shared.q, shared.k[stage]);
    const bool full = work().is_full(at);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      if (!full)
        tile::hide(r_s[f], work(), work().row + warp_row_now() + 16 * f + lane_now() / 4, at * C::kTileN,
                   2 * (lane_now() % 4));
      const float shift[2] = {-rows.row_lse[f][0] * kLog2E, -rows.row_lse[f][1] * kLog2E};
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        r_s[f][i] = ptx::exp2_approx(fmaf(r_s[f][i], args.scale_log2, shift[i / 2 % 2]));
    }
    multiply<C::kDimV, typename C::OTile, typename C::VTile>(r_dp, shared.dout, shared.v[stage]);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) r_s[f][i] *= r_dp[f][i] - rows.row_delta[f][i / 2 % 2];
    }
    add(r_s, stage);
  }

  __device__ __forceinline__ void general_step(const OfRows& of_rows, Found at, int stage, bool careful) {
    float r_ds[1][kScores];
    general_gradients<GradientOf::product>(r_ds, of_rows, at, stage, careful);
    add(r_ds, stage);
  }

  // R = A B^T, rows of the warp and keys of the tile.
  template <int kColumns, typename ATile, typename BTile>
  __device__ __forceinline__ void multiply(float (&r)[kFragments][kScores], const uint8_t* s_a,
                                           const uint8_t* s_b) {
    const int lane = lane_now(), half = lane / 16;
    row_products<T, C::kTileN, kColumns / 16, ATile, BTile>(
        r, LaneAddress(s_a, warp_row_now() + lane % 16, half),
        LaneAddress(s_b, half * 8 + lane % 8, lane / 8 % 2));
  }

  // dQ += dS K.
  __device__ __forceinline__ void add(const float (&r_ds)[kFragments][kScores], int stage) {
    const int lane = lane_now();
    add_rounded<T, typename C::KTile>(r_dq, r_ds, LaneAddress(shared.k[stage], lane % 16, lane / 16));
  }

  __device__ __forceinline__ void load_queries() {
    const BackwardParams& p = args.params;
    const tile::Work& w = work();
    const int64_t row = w.q_begin + w.row;
    load_tile<T, C::kTileM, C::kDim, C::kThreads>(
        shared.q, static_cast<const T*>(p.q.data) + p.q.at(w.batch, row, w.head), p.q.row_stride, 0,
        w.len_q - w.row, static_cast<int>(p.head_dim), args.wide_q);
    load_tile<T, C::kTileM, C::kDimV, C::kThreads>(
        shared.dout, static_cast<const T*>(p.dout.data) + p.dout.at(w.batch, row, w.head), p.dout.row_stride,
        0, w.len_q - w.row, static_cast<int>(p.head_dim_v), args.wide_dout);
  }

  // A row that sees nothing has zeros, whatever its q and dO.
  __device__ __forceinline__ void clear_blind_rows() {
    const tile::Work& w = work();
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const int row = w.row + warp_row_now() + 16 * f + lane_now() / 4;
      bool sees[2] = {rows.sees(f, 0), rows.sees(f, 1)};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = row + 8 * r;
        if constexpr (C::kGeneral)
          sees[r] = sees[r] && shared.general.hi[i - w.row] > shared.general.lo[i - w.row];
        else
          sees[r] = sees[r] && w.hi(i) > w.lo(i);
      }
#pragma unroll
      for (int i = 0; i < C::kDim / 2; ++i) {
        if (!sees[i / 2 % 2]) r_dq[f][i] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void write() {
    const BackwardParams& p = args.params;
    const tile::Work& w = work();
    clear_blind_rows();
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const int row = w.row + warp_row_now() + 16 * f + lane_now() / 4;
      const int columns[2] = {row < w.rows_q ? static_cast<int>(p.head_dim) : 0,
                              row + 8 < w.rows_q ? static_cast<int>(p.head_dim) : 0};
      tile::store_gradient<T>(r_dq[f], p.scale, p.dq, p.dq.at(w.batch, w.q_begin + row, w.head), args.wide_dq,
                              p.accumulate, columns, lane_now());
    }
  }
};

// A block's tile of queries. A packed sequence that is longer than the plan's bound has further ones.
template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    backward_queries(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<QueryShared<C>*>(s_bytes);
  int batch, head, tile_row;
  args.order.find(static_cast<int32_t>(blockIdx.x), batch, head, tile_row);
#pragma unroll 1
  for (;; tile_row += args.order.tiles_m) {
    const bool exists = begin_work(shared.work, [&](tile::Work& w) {
      return tile::make_work<C::kTileM, C::kTileN>(w, args.params, batch, head, tile_row);
    });
    if (!exists) return;
    BackwardQueries<C>(args, shared).run();
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_BACKWARD_QUERIES_H_
