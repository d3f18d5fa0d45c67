// dK and dV of fp32 tensors at fp32 accuracy, by products of 16 bits. The walk is that of backward_keys.cuh:
// a block owns 64 keys of a key head and walks the tiles of queries that see them, query head by query head.
//
//   S^T = K Q^T, P = e^(S - lse)      dV += P^T dO      dP^T = V dO^T, dS = P o (dP - D)      dK += dS^T Q
//
// Every operand is in two fp16 parts, so a product is three: q, k, v and dO as scratch has them
// (forward_f32_parts.cuh, Low::plain), P and dS split in registers, times the power of two of the query's row
// (SplitWeights). A tile's product starts from zero, and tiles are added in fp32, rounded: the matrix unit
// truncates.
//
// Roles. Four warps alike, 16 keys each; with wgmma they are one warpgroup. Shared memory: both parts of K
// and V of the tile; one or two stages of both parts of Q and dO, with lse, D and units.
//
// Invariants. Those of backward_keys.cuh. A row that two parts cannot hold has NaN for its unit, so that, as
// with data that is not finite, sums are not: such a tile is not written but marked, and made again in plain
// fp32 by the kernels behind this one.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_F32_KEYS_H_
#define TILEWISE_CUDA_SM80_BACKWARD_F32_KEYS_H_

#include "cuda/sm80/backward_f32_config.cuh"
#include "cuda/sm80/backward_keys.cuh"

namespace tilewise::sm80 {

template <typename C>
struct BackwardF32Keys : BackwardKeys<C, F32KeyShared<C>> {
  using Base = BackwardKeys<C, F32KeyShared<C>>;
  using Products = typename C::Products;
  using Step = typename Base::Step;
  using QTile = typename C::QTile;
  using KTile = typename C::KTile;
  static constexpr int kScores = C::kTileM / 2, kPartSum = Products::kPart / 2;
  using Base::lane_now, Base::warp_row_now, Base::work, Base::wants_dv, Base::wants_dk, Base::shared;

  const F32BackwardArgs& args;
  float scale_of_key[2];  // score class simple: units of this thread's two keys, k's times the scale, v's
  float unit_of_value[2];

  __device__ __forceinline__ BackwardF32Keys(const F32BackwardArgs& a, F32KeyShared<C>& s)
      : Base(a, s), args(a) {}

  // False: not finite, and nothing was written.
  __device__ __forceinline__ bool run() {
    if constexpr (C::kGeneral) {
      if (args.params.segment_ids_q.data) this->look_at_segments();
    }
#pragma unroll 1
    for (bool careful = false;; careful = true) {
      walk(careful);
      if (!__syncthreads_or(any_not_finite(this->r_dv) || any_not_finite(this->r_own_dk))) break;
      if (careful) return false;
    }
    const BackwardParams& p = args.params;
    if (wants_dv()) write_sum(this->r_dv[0], 1.0f, p.dv, p.head_dim_v);
    if (wants_dk()) write_sum(this->r_own_dk[0], p.scale, p.dk, p.head_dim);
    return true;
  }

 private:
  // Careful: queries that see nothing are cleared.
  __device__ __forceinline__ void walk(bool careful) {
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) this->r_dv[0][i] = this->r_own_dk[0][i] = 0.0f;
    const tile::KeyWork& w = work();
    const int end = (w.head + 1) * args.queries_per_key_head;
    Step at = this->find({w.head * args.queries_per_key_head, w.tile_first, false});
    if (at.head >= end) return;
    load_keys();
    load_queries(at, 0);
    int stage = 0;
#pragma unroll 1
    for (bool first = true; at.head < end; first = false) {
      const Step next = this->find({at.head, at.tile + 1, false});
      ptx::cp_async_wait<0>();
      Products::fence_copies();
      __syncthreads();
      if (C::kStages == 2 && next.head < end) load_queries(next, stage ^ 1);
      if (!C::kGeneral && first) take_units();
      if (careful) clear_blind(stage);
      if constexpr (C::kGeneral)
        general_step(at, stage, careful);
      else
        step(at, stage);
      if (C::kStages == 1) {
        __syncthreads();
        if (next.head < end) load_queries(next, 0);
      } else {
        stage ^= 1;
      }
      at = next;
    }
  }

  __device__ __forceinline__ void take_units() {
    const int row = warp_row_now() + lane_now() / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      scale_of_key[r] = shared.k_units[row + 8 * r] * args.params.scale;
      unit_of_value[r] = shared.v_units[row + 8 * r];
    }
  }

  // Both gradients, asked for or not: a branch between products on their way would make ptxas wait for each.
  __device__ __forceinline__ void step(Step at, int stage) {
    const int column = 2 * (lane_now() % 4);
    float r_s[kScores], r_dp[kScores], r_part[kPartSum];
    Products::template issue_scores<C::kDim, KTile, QTile>(r_s, shared.k, shared.q[stage]);
    Products::template issue_scores<C::kDim, KTile, QTile>(r_dp, shared.v, shared.dout[stage]);
    Products::template wait<1>();
    Products::pin(r_s);
#pragma unroll
    for (int n = 0; n < C::kTileM / 8; ++n) {
      const float2 lse = *reinterpret_cast<const float2*>(&shared.lse[stage][column + 8 * n]);
      const float2 unit = *reinterpret_cast<const float2*>(&shared.q_units[stage][column + 8 * n]);
      const float shift[2] = {-lse_or_far(lse.x), -lse_or_far(lse.y)}, units[2] = {unit.x, unit.y};
      // The difference rounded once: both can be large beside it.
#pragma unroll
      for (int i = 0; i < 4; ++i)
        r_s[4 * n + i] =
            ptx::exp2_approx(fmaf(r_s[4 * n + i] * units[i % 2], scale_of_key[i / 2], shift[i % 2]) * kLog2E);
    }
    if (!work().is_full(at.tile)) {
      const ByKeys first = this->place(at, 0);
      tile::hide_keys(r_s, work(), first.query, first.key, 0);
    }
    SplitWeights<kScores> weights;
    weights.make(r_s, &shared.dout_units[stage][column]);
    Products::template issue_values<QTile>(r_part, weights.hi, weights.lo, shared.dout[stage], 0);
    Products::template wait<1>();
    Products::pin(r_dp);
    take_gradients(r_s, r_dp, stage);
    add_parts<Products, QTile>(this->r_dv[0], r_part, weights, shared.dout[stage]);
    add_dk(r_s, stage);
  }

  __device__ __forceinline__ void general_step(Step at, int stage, bool careful) {
    using Columns = ColumnQueries<F32KeyShared<C>>;
    const int column = 2 * (lane_now() % 4);
    const Columns columns{shared, stage, column};
    GeneralFragment<ByKeys, Columns, kScores> pairs{args, work(), columns, at.head, this->place(at, 0)};
    pairs.fetch(work().is_full(at.tile) && !args.params.kv_ranges.data, at.mixed);
    float r_s[kScores], r_dp[kScores], r_part[kPartSum];
    Products::template issue_scores<C::kDim, KTile, QTile>(r_s, shared.k, shared.q[stage]);
    Products::template wait<0>();
    Products::pin(r_s);
    take_row_units(r_s, &shared.q_units[stage][column], shared.k_units, warp_row_now() + lane_now() / 4);
    pairs.weigh(r_s);
    SplitWeights<kScores> weights;
    if (wants_dv()) {
      pairs.drop(r_dp, r_s);
      weights.make(r_dp, &shared.dout_units[stage][column]);
      Products::template issue_values<QTile>(r_part, weights.hi, weights.lo, shared.dout[stage], 0);
      add_parts<Products, QTile>(this->r_dv[0], r_part, weights, shared.dout[stage]);
    }
    if (!wants_dk()) return;
    Products::template issue_scores<C::kDim, KTile, QTile>(r_dp, shared.v, shared.dout[stage]);
    Products::template wait<0>();
    Products::pin(r_dp);
    take_row_units(r_dp, &shared.dout_units[stage][column], shared.v_units, warp_row_now() + lane_now() / 4);
    pairs.template score_gradients<GradientOf::product>(r_s, r_dp, careful);
    add_dk(r_s, stage);
  }

  // P and dP to dS.
  __device__ __forceinline__ void take_gradients(float (&r_s)[kScores], const float (&r_dp)[kScores],
                                                 int stage) {
    const int column = 2 * (lane_now() % 4);
#pragma unroll
    for (int n = 0; n < C::kTileM / 8; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(&shared.delta[stage][column + 8 * n]);
      const float2 unit = *reinterpret_cast<const float2*>(&shared.dout_units[stage][column + 8 * n]);
      const float units[2] = {unit.x, unit.y}, deltas[2] = {delta.x, delta.y};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        r_s[4 * n + i] *= fmaf(r_dp[4 * n + i] * units[i % 2], unit_of_value[i / 2], -deltas[i % 2]);
    }
  }

  __device__ __forceinline__ void add_dk(const float (&r_ds)[kScores], int stage) {
    SplitWeights<kScores> weights;
    float r_part[kPartSum];
    weights.make(r_ds, &shared.q_units[stage][2 * (lane_now() % 4)]);
    Products::template issue_values<QTile>(r_part, weights.hi, weights.lo, shared.q[stage], 0);
    add_parts<Products, QTile>(this->r_own_dk[0], r_part, weights, shared.q[stage]);
  }

  __device__ __forceinline__ void load_keys() {
    const tile::KeyWork& w = work();
    const int first = w.see_first - w.key, last = w.see_last - w.key;
    load_parts<C::kTileN, C::kDim>(shared.k, shared.k_units, args.k, w.batch, w.kv_begin + w.key, w.head,
                                   first, last);
    load_parts<C::kTileN, C::kDim>(shared.v, shared.v_units, args.v, w.batch, w.kv_begin + w.key, w.head,
                                   first, last);
  }

  __device__ __forceinline__ void load_queries(Step at, int stage) {
    const BackwardParams& p = args.params;
    const tile::KeyWork& w = work();
    const int row = at.tile * C::kTileM, first = w.row_first - row, last = w.row_last - row;
    load_parts<C::kTileM, C::kDim>(shared.q[stage], shared.q_units[stage], args.q, w.batch, w.q_begin + row,
                                   at.head, first, last);
    load_parts<C::kTileM, C::kDim>(shared.dout[stage], shared.dout_units[stage], args.dout_parts, w.batch,
                                   w.q_begin + row, at.head, first, last);
    // The first kTileM threads take lse, the others D.
    static_assert(2 * C::kTileM <= C::kThreads);
    const int thread = ptx::thread_afresh(), r = thread % C::kTileM;
    if (thread < 2 * C::kTileM) {
      const bool exists = r >= first && r < last, of_lse = thread < C::kTileM;
      const int64_t of_row = w.q_begin + (exists ? row + r : 0);
      ptx::cp_async_4(ptx::shared_address(of_lse ? &shared.lse[stage][r] : &shared.delta[stage][r]),
                      of_lse ? &p.lse.at(w.batch, of_row, at.head) : &p.delta.at(w.batch, of_row, at.head),
                      exists ? 4 : 0);
    }
    ptx::cp_async_commit();
    if constexpr (C::kGeneral) {
      if (thread < C::kTileM) this->note_query(at, row + r, shared.general[stage], r, r >= first && r < last);
    }
  }

  // Between two barriers, of which the walk has the first.
  __device__ __forceinline__ void clear_blind(int stage) {
    constexpr int kChunks = QTile::kPanels * 8;
#pragma unroll 1
    for (int i = ptx::thread_afresh(); i < C::kTileM * kChunks; i += C::kThreads) {
      const int r = i / kChunks;
      bool blind = shared.lse[stage][r] == kNegativeInfinity;
      if constexpr (C::kGeneral) blind = blind || shared.general[stage].hi[r] <= shared.general[stage].lo[r];
      if (!blind) continue;
      const int at = QTile::chunk_offset(r, i % kChunks);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        *reinterpret_cast<uint4*>(shared.q[stage][part] + at) = uint4{};
        *reinterpret_cast<uint4*>(shared.dout[stage][part] + at) = uint4{};
      }
    }
    Products::fence_copies();
    __syncthreads();
  }

  template <int kCount>
  __device__ __forceinline__ void write_sum(const float (&sum)[kCount], float scale, const RowTensor& to,
                                            int64_t dim) {
    const tile::KeyWork& w = work();
    const int key = w.key + warp_row_now() + lane_now() / 4;
    const int columns[2] = {key < w.rows_kv ? static_cast<int>(dim) : 0,
                            key + 8 < w.rows_kv ? static_cast<int>(dim) : 0};
    store_f32(sum, scale, to, to.at(w.batch, w.kv_begin + key, w.head), args.params.accumulate, columns,
              lane_now());
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    backward_f32_keys(const __grid_constant__ F32BackwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<F32KeyShared<C>*>(s_bytes);
  take_turns(
      shared, args,
      [&](int batch, int head, int at) {
        return begin_work(shared.work, [&](tile::KeyWork& w) {
          return tile::make_key_work<C::kTileM, C::kTileN>(w, args.params, batch, head, at);
        });
      },
      [&] { return BackwardF32Keys<C>(args, shared).run(); });
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_BACKWARD_F32_KEYS_H_
