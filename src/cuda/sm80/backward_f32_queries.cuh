// dQ of fp32 tensors at fp32 accuracy, by products of 16 bits. The walk is that of backward_queries.cuh: a
// block owns 64 queries of a head and walks the tiles of keys that they see, from the last to the first.
//
//   S = Q K^T, P = e^(S - lse)      dP = dO V^T, dS = P o (dP - D)      dQ += dS K
//
// Operands in two parts, tile sums and what is left to plain fp32 as in backward_f32_keys.cuh. Shared memory:
// both parts of Q and dO of the tile; one or two stages of both parts of K and V, with units.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_F32_QUERIES_H_
#define TILEWISE_CUDA_SM80_BACKWARD_F32_QUERIES_H_

#include "cuda/sm80/backward_f32_config.cuh"
#include "cuda/sm80/backward_queries.cuh"

namespace tilewise::sm80 {

template <typename C>
struct BackwardF32Queries : BackwardQueries<C, F32QueryShared<C>> {
  using Base = BackwardQueries<C, F32QueryShared<C>>;
  using Products = typename C::Products;
  using QTile = typename C::QTile;
  using KTile = typename C::KTile;
  static constexpr int kScores = C::kTileN / 2, kPartSum = Products::kPart / 2;
  using Base::lane_now, Base::warp_row_now, Base::work, Base::rows, Base::shared;

  const F32BackwardArgs& args;
  float
      scale_of_query[2];  // score class simple: units of this thread's two queries, q's times the scale, dO's
  float unit_of_dout[2];

  __device__ __forceinline__ BackwardF32Queries(const F32BackwardArgs& a, F32QueryShared<C>& s)
      : Base(a, s), args(a) {}

  // False: not finite, and nothing was written.
  __device__ __forceinline__ bool run() {
    if constexpr (C::kGeneral) make_general_work(shared, args.params);
#pragma unroll 1
    for (bool careful = false;; careful = true) {
      walk(careful);
      this->clear_blind_rows();
      if (!__syncthreads_or(any_not_finite(this->r_dq))) break;
      if (careful || !C::kGeneral) return false;
    }
    write();
    return true;
  }

 private:
  // Careful: keys that no row sees are cleared.
  __device__ __forceinline__ void walk(bool careful) {
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) this->r_dq[0][i] = 0.0f;
    const tile::Work& w = work();
    if (w.tile_first >= w.tile_last) return;
    const int row = warp_row_now() + lane_now() / 4;
    rows.read(args.params, w, w.row + row);
    const typename Base::OfRows of_rows(args.params, rows, shared, row);
    Found at = this->find(w.tile_last);
    load_queries();
    if (at.tile >= 0) load_keys(at.tile, 0);
    int stage = 0;
#pragma unroll 1
    for (bool first = true; at.tile >= 0; first = false) {
      const Found next = this->find(at.tile);
      ptx::cp_async_wait<0>();
      Products::fence_copies();
      __syncthreads();
      if (C::kStages == 2 && next.tile >= 0) load_keys(next.tile, stage ^ 1);
      if (!C::kGeneral && first) take_units(row);
      if constexpr (C::kGeneral) {
        if (careful) {
          for (uint8_t* s_part : {shared.k[stage][0], shared.k[stage][1]})
            clear_unseen<KTile>(shared, args.params, s_part, at.tile * C::kTileN);
        }
        general_step(of_rows, at, stage, careful);
      } else {
        step(at.tile, stage);
      }
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

  __device__ __forceinline__ void take_units(int row) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      scale_of_query[r] = shared.q_units[row + 8 * r] * args.params.scale;
      unit_of_dout[r] = shared.dout_units[row + 8 * r];
    }
  }

  __device__ __forceinline__ void step(int at, int stage) {
    const int lane = lane_now(), column = 2 * (lane % 4);
    float r_s[kScores], r_dp[kScores];
    Products::template issue_scores<C::kDim, QTile, KTile>(r_s, shared.q, shared.k[stage]);
    Products::template issue_scores<C::kDim, QTile, KTile>(r_dp, shared.dout, shared.v[stage]);
    Products::template wait<1>();
    Products::pin(r_s);
#pragma unroll
    for (int n = 0; n < C::kTileN / 8; ++n) {
      const float2 unit = *reinterpret_cast<const float2*>(&shared.k_units[stage][column + 8 * n]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        r_s[4 * n + i] =
            fmaf(r_s[4 * n + i] * (i % 2 ? unit.y : unit.x), scale_of_query[i / 2], -rows.row_lse[0][i / 2]);
    }
    if (!work().is_full(at))
      tile::hide(r_s, work(), work().row + warp_row_now() + lane / 4, at * C::kTileN, column);
#pragma unroll
    for (int i = 0; i < kScores; ++i) r_s[i] = ptx::exp2_approx(r_s[i] * kLog2E);
    Products::template wait<0>();
    Products::pin(r_dp);
#pragma unroll
    for (int n = 0; n < C::kTileN / 8; ++n) {
      const float2 unit = *reinterpret_cast<const float2*>(&shared.v_units[stage][column + 8 * n]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        r_s[4 * n + i] *=
            fmaf(r_dp[4 * n + i] * (i % 2 ? unit.y : unit.x), unit_of_dout[i / 2], -rows.row_delta[0][i / 2]);
    }
    add_dq(r_s, stage);
  }

  __device__ __forceinline__ void general_step(const typename Base::OfRows& of_rows, Found at, int stage,
                                               bool careful) {
    const int lane = lane_now(), column = 2 * (lane % 4);
    GeneralFragment<ByQueries, typename Base::OfRows, kScores> pairs{
        args, work(), of_rows, work().head,
        ByQueries{work().row + warp_row_now() + lane / 4, at.tile * C::kTileN + column}};
    // Full is said of the rows that exist.
    pairs.fetch(work().is_full(at.tile) && work().row + C::kTileM <= work().len_q, at.mixed);
    float r_s[kScores], r_dp[kScores];
    Products::template issue_scores<C::kDim, QTile, KTile>(r_s, shared.q, shared.k[stage]);
    Products::template wait<0>();
    Products::pin(r_s);
    take_row_units(r_s, &shared.k_units[stage][column], shared.q_units, warp_row_now() + lane_now() / 4);
    pairs.weigh(r_s);
    Products::template issue_scores<C::kDim, QTile, KTile>(r_dp, shared.dout, shared.v[stage]);
    Products::template wait<0>();
    Products::pin(r_dp);
    take_row_units(r_dp, &shared.v_units[stage][column], shared.dout_units, warp_row_now() + lane_now() / 4);
    pairs.template score_gradients<GradientOf::product>(r_s, r_dp, careful);
    add_dq(r_s, stage);
  }

  __device__ __forceinline__ void add_dq(const float (&r_ds)[kScores], int stage) {
    SplitWeights<kScores> weights;
    float r_part[kPartSum];
    weights.make(r_ds, &shared.k_units[stage][2 * (lane_now() % 4)]);
    Products::template issue_values<KTile>(r_part, weights.hi, weights.lo, shared.k[stage], 0);
    add_parts<Products, KTile>(this->r_dq[0], r_part, weights, shared.k[stage]);
  }

  __device__ __forceinline__ void load_queries() {
    const tile::Work& w = work();
    load_parts<C::kTileM, C::kDim>(shared.q, shared.q_units, args.q, w.batch, w.q_begin + w.row, w.head, 0,
                                   w.len_q - w.row);
    load_parts<C::kTileM, C::kDim>(shared.dout, shared.dout_units, args.dout_parts, w.batch,
                                   w.q_begin + w.row, w.head, 0, w.len_q - w.row);
  }

  __device__ __forceinline__ void load_keys(int at, int stage) {
    const tile::Work& w = work();
    const int key = at * C::kTileN, first = w.see_first - key, last = w.see_last - key;
    const int kv_head = w.head / args.queries_per_key_head;
    load_parts<C::kTileN, C::kDim>(shared.k[stage], shared.k_units[stage], args.k, w.batch, w.kv_begin + key,
                                   kv_head, first, last);
    load_parts<C::kTileN, C::kDim>(shared.v[stage], shared.v_units[stage], args.v, w.batch, w.kv_begin + key,
                                   kv_head, first, last);
    ptx::cp_async_commit();
  }

  __device__ __forceinline__ void write() {
    const BackwardParams& p = args.params;
    const tile::Work& w = work();
    const int row = w.row + warp_row_now() + lane_now() / 4;
    const int columns[2] = {row < w.rows_q ? static_cast<int>(p.head_dim) : 0,
                            row + 8 < w.rows_q ? static_cast<int>(p.head_dim) : 0};
    store_f32(this->r_dq[0], p.scale, p.dq, p.dq.at(w.batch, w.q_begin + row, w.head), p.accumulate, columns,
              lane_now());
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    backward_f32_queries(const __grid_constant__ F32BackwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<F32QueryShared<C>*>(s_bytes);
  take_turns(
      shared, args,
      [&](int batch, int head, int at) {
        return begin_work(shared.work, [&](tile::Work& w) {
          return tile::make_work<C::kTileM, C::kTileN>(w, args.params, batch, head, at);
        });
      },
      [&] { return BackwardF32Queries<C>(args, shared).run(); });
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_BACKWARD_F32_QUERIES_H_
