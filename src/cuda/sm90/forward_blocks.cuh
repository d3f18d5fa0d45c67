// Forward attention on sm_90a by small blocks of which several share a multiprocessor: each O = softmax(mask(
// score(Q K^T))) V for one tile of queries of one head. For short sequences; it takes any length.
//
// Roles. One or two warpgroups alike, 64 queries each; there is no producer and there are no turns: a
// warpgroup's step is one chain (scores, softmax, values), and what fills the units meanwhile are the other
// blocks. So a piece of work starts and ends under the others' work, which is what the persistent kernel
// (forward.cuh) loses where a piece has few steps. One thread of the first warpgroup drives the copy engine.
//
// Shared memory. Q, and one or two tiles of K and of V, asked for at once; further tiles follow as buffers
// come free.
//
// Where there are fewer blocks than multiprocessors, a call takes as long as one piece. Then the warpgroups
// share the queries and deal the keys among them (kShares), each with buffers of its own, and the first joins
// the parts.
//
// Invariants. Every full barrier has one arrival and the tile's bytes; every empty barrier counts the warps.
// A block barrier stands between the pieces of a packed sequence that is longer than the plan's bound.
#ifndef TILEWISE_CUDA_SM90_FORWARD_BLOCKS_H_
#define TILEWISE_CUDA_SM90_FORWARD_BLOCKS_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/finish_rows.cuh"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/sm90/load_tile.cuh"
#include "cuda/tile/clear.cuh"
#include "cuda/tile/pieces.cuh"
#include "cuda/tile/product.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::sm90 {

template <typename ElementT, int kWarpgroups, bool kSharedQueries, int kKeys, int kStageCount, int kBlocksOf,
          bool kShapedScores = false>
struct BlockConfig {
  using Element = ElementT;
  static constexpr int kDim = 64, kDimV = 64;
  static constexpr int kGroups = kWarpgroups, kThreads = 128 * kGroups;
  static constexpr int kBlocks = kBlocksOf;  // that share a multiprocessor
  static constexpr bool kShares = kSharedQueries;
  static constexpr int kRowGroups = kShares ? 1 : kGroups, kRings = kShares ? kGroups : 1;
  static constexpr int kTileM = 64 * kRowGroups, kTileN = kKeys, kStages = kStageCount;
  static constexpr bool kShaped = kShapedScores;

  using QTile = tile::SharedTile<64, kDim>;
  using KTile = tile::SharedTile<kTileN, kDim>;
  using VTile = tile::SharedTile<kTileN, kDimV>;
};

template <typename C>
struct BlockRing {
  alignas(tile::kSwizzleAlignment) uint8_t k[C::kStages][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::kStages][C::VTile::kBytes];
  ptx::Mbarrier k_full[C::kStages], k_empty[C::kStages];
  ptx::Mbarrier v_full[C::kStages], v_empty[C::kStages];
};

template <typename C>
struct BlockShared {
  alignas(tile::kSwizzleAlignment) uint8_t q[C::kRowGroups][C::QTile::kBytes];
  BlockRing<C> rings[C::kRings];
  tile::Work work;
  int32_t more;
  ptx::Mbarrier q_full[C::kRowGroups];
};

template <typename C>
struct BlockForward {
  using T = typename C::Element;
  static constexpr int kGroupBarrier = 1;  // + warpgroup

  const ForwardArgs& args;
  BlockShared<C>& shared;
  BlockRing<C>& ring;  // the warpgroup's
  const int group;
  uint32_t count = 0, loads = 0;      // tiles, and pieces with tiles, before this one
  uint32_t of_rings[C::kRings] = {};  // tiles of each ring before this piece
  float r_o[C::kDimV / 2];
  tile::OnlineSoftmax softmax;

  __device__ __forceinline__ void run() {
    for (int piece = 0;; ++piece) {
      if (threadIdx.x == 0) begin(piece);
      __syncthreads();
      if (!shared.more) return;
      attend();
      if (C::kShares) join();
      if (!C::kShares || group == 0) finish_rows<C>(*this, work(), false, nullptr);
      __syncthreads();  // the work has been read, the buffers too
    }
  }

  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }
  // First of this thread's two rows.
  __device__ __forceinline__ int row_now() const {
    const int thread = ptx::thread_afresh() % (128 * C::kRowGroups);
    return work().row + 16 * (thread / 32) + thread % 32 / 4;
  }
  __device__ __forceinline__ int kv_head() const { return args.key_heads.divide(work().head); }

 private:
  __device__ __forceinline__ const tile::Work& work() const { return shared.work; }
  static __device__ __forceinline__ uint32_t stage_of(uint32_t n) { return n % C::kStages; }
  static __device__ __forceinline__ uint32_t phase_of(uint32_t n) { return n / C::kStages & 1; }

  // The next piece, and what of it there are buffers for. By one thread.
  __device__ __forceinline__ void begin(int piece) {
    const ForwardParams& p = args.params;
    int batch, head, tile_row;
    args.pieces.find(static_cast<int32_t>(blockIdx.x), batch, head, tile_row);
    tile_row += piece * args.order.tiles_m;
    shared.more = args.pieces.make<C::kTileN>(shared.work, p, batch, head, tile_row * C::kTileM, C::kTileM);
    if (piece == 0) ptx::grid_wait();
    const tile::Work& w = shared.work;
    if (!shared.more || w.tile_first >= w.tile_last) return;
    for (int i = 0; i < C::kRings * C::kStages && w.tile_last - 1 - i >= w.tile_first; ++i) {
      BlockRing<C>& to = shared.rings[i % C::kRings];
      const uint32_t n = of_rings[i % C::kRings] + i / C::kRings;
      load_keys(to, w.tile_last - 1 - i, n);
      if (i == 0) {
        for (int g = 0; g < C::kRowGroups; ++g)
          load_tile<typename C::QTile>(shared.q[g], args.q, &shared.q_full[g], ptx::CacheHint::evict_first,
                                       w.q_begin + w.row + 64 * g, w.head, w.batch);
      }
      load_values(to, w.tile_last - 1 - i, n);
    }
#pragma unroll
    for (int r = 0; r < C::kRings; ++r)
      of_rings[r] += (w.tile_last - w.tile_first + C::kRings - 1 - r) / C::kRings;
  }

  __device__ __forceinline__ void load_keys(BlockRing<C>& to, int tile, uint32_t n) {
    const tile::Work& w = work();
    load_tile<typename C::KTile>(to.k[stage_of(n)], args.k, &to.k_full[stage_of(n)], ptx::CacheHint::normal,
                                 w.kv_begin + tile * C::kTileN, kv_head(), w.batch);
  }
  __device__ __forceinline__ void load_values(BlockRing<C>& to, int tile, uint32_t n) {
    const tile::Work& w = work();
    load_tile<typename C::VTile>(to.v[stage_of(n)], args.v, &to.v_full[stage_of(n)], ptx::CacheHint::normal,
                                 w.kv_begin + tile * C::kTileN, kv_head(), w.batch);
  }

  __device__ __forceinline__ void attend() {
    // From a shuffle the compiler knows that they are the same in all lanes.
    const int first = __shfl_sync(~0u, work().tile_first, 0), last = __shfl_sync(~0u, work().tile_last, 0);
    softmax = {};
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) r_o[i] = 0.0f;
    const int row_group = C::kShares ? 0 : group;
    if (first < last) ptx::mbarrier_wait(&shared.q_full[row_group], loads++ & 1);
#pragma unroll 1
    for (int tile = last_of(last); tile >= first; tile -= C::kRings, ++count) {
      const uint32_t stage = stage_of(count), phase = phase_of(count);
      float r_s[C::kTileN / 2];
      ptx::mbarrier_wait(&ring.k_full[stage], phase);
      tile::issue_scores<T, C::kTileN, C::kDim>(r_s, C::QTile::k_major(shared.q[row_group]),
                                                C::KTile::k_major(ring.k[stage]));
      ptx::wgmma_wait<0>();
      ptx::pin(r_s);
      release(&ring.k_empty[stage]);
      prepare(r_s, tile);
      softmax.raise(r_s, args.scale_log2).apply(r_o);
      softmax.weigh(r_s, args.scale_log2);
      uint32_t r_p[C::kTileN / 4];
      tile::round_weights<T>(r_p, r_s);
      if (tile + C::kRings * (1 - C::kStages) >= first && loads_tiles()) refill(tile, first, last);
      ptx::mbarrier_wait(&ring.v_full[stage], phase);
      clear_unseen(tile, stage);
      tile::issue_values<T, C::kTileN, C::kDimV>(r_o, r_p, C::VTile::mn_major(ring.v[stage]), true);
      ptx::wgmma_wait<0>();
      ptx::pin(r_o);
      release(&ring.v_empty[stage]);
    }
  }

  // The first tile of the warpgroup's, from the end.
  __device__ __forceinline__ int last_of(int last) const { return last - 1 - (C::kShares ? group : 0); }
  __device__ __forceinline__ bool loads_tiles() const {
    return C::kShares ? threadIdx.x % 128 == 0 : threadIdx.x == 0;
  }

  // What takes the place of this tile's keys and of the last tile's values: both have been free for a while,
  // so the waits for the other warpgroup are short.
  __device__ __forceinline__ void refill(int tile, int first, int last) {
    if (tile < last_of(last)) {
      ptx::mbarrier_wait(&ring.v_empty[stage_of(count - 1)], phase_of(count - 1));
      load_values(ring, tile + C::kRings * (1 - C::kStages), count - 1 + C::kStages);
    }
    if (tile - C::kRings * C::kStages < first) return;
    ptx::mbarrier_wait(&ring.k_empty[stage_of(count)], phase_of(count));
    load_keys(ring, tile - C::kRings * C::kStages, count + C::kStages);
  }

  // The other warpgroup's part of the keys, through its own buffers.
  __device__ __forceinline__ void join() {
    static_assert(!C::kShares || C::kGroups == 2);
    static_assert(!C::kShares || sizeof(float) * (C::kDimV / 2 + 4) * 128 <= 2 * C::kTileN * 128);
    auto* s_part = reinterpret_cast<float*>(shared.rings[C::kRings - 1].k[0]) + threadIdx.x % 128;
    __syncthreads();  // all products have read their keys and values
    if (group == 1) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        s_part[128 * r] = softmax.top[r];
        s_part[128 * (2 + r)] = softmax.sum[r];
      }
#pragma unroll
      for (int i = 0; i < C::kDimV / 2; ++i) s_part[128 * (4 + i)] = r_o[i];
      ptx::fence_async_shared();  // the copy engine may write there next
    }
    __syncthreads();
    if (group == 1) return;
    float factor[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float tops[2] = {softmax.top[r], s_part[128 * r]};
      softmax.top[r] = fmaxf(tops[0], tops[1]);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const float below = __fmul_rn(tops[part], args.scale_log2) - softmax.shift(r, args.scale_log2);
        factor[part][r] = tops[part] == tile::kMinusInfinity ? 0.0f : ptx::exp2_approx(below);
      }
      softmax.sum[r] = softmax.sum[r] * factor[0][r] + s_part[128 * (2 + r)] * factor[1][r];
    }
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i)
      r_o[i] = r_o[i] * factor[0][i / 2 % 2] + s_part[128 * (4 + i)] * factor[1][i / 2 % 2];
  }

  __device__ __forceinline__ void release(ptx::Mbarrier* empty) {
    if (ptx::thread_afresh() % 32 == 0) ptx::mbarrier_arrive(empty);
  }

  __device__ __forceinline__ void prepare(float (&r_s)[C::kTileN / 2], int tile) {
    const tile::Work& w = work();
    const int row = row_now(), key = tile * C::kTileN, lane_column = 2 * (lane_now() % 4);
    if constexpr (C::kShaped) {
      const ForwardParams& p = args.params;
      tile::shape(r_s, p.scale, p.softcap, p.alibi_slope(w.batch, w.head), row + w.q_offset, w.beyond, key,
                  lane_column);
    }
    if (!w.is_full(tile)) tile::hide<true>(r_s, w, row, key, lane_column);
  }

  // Zeroes values that no row of the tile sees: of the first and the last tile of keys.
  __device__ __forceinline__ void clear_unseen(int tile, uint32_t stage) {
    const int first = work().see_first - tile * C::kTileN, last = work().see_last - tile * C::kTileN;
    if (first <= 0 && last >= C::kTileN) return;
    // Barriers by constants: a kernel that may name any takes all sixteen, and blocks share what a
    // multiprocessor has.
    if (group == 0)
      tile::clear_outside<C::kTileN, C::kDimV>(ring.v[stage], first, last, kGroupBarrier);
    else
      tile::clear_outside<C::kTileN, C::kDimV>(ring.v[stage], first, last, kGroupBarrier + 1);
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    forward_by_blocks(const __grid_constant__ ForwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<BlockShared<C>*>(s_bytes);
  ptx::grid_release();
  if (threadIdx.x == 0) {
    ptx::tma_prefetch_map(&args.k.map);
    ptx::tma_prefetch_map(&args.q.map);
    ptx::tma_prefetch_map(&args.v.map);
    // Nobody else touches global memory before this thread has waited, in begin().
    if (!args.pieces.uniform) ptx::grid_wait();
    for (int i = 0; i < C::kRowGroups; ++i) ptx::mbarrier_init(&shared.q_full[i], 1);
    for (BlockRing<C>& ring : shared.rings) {
      for (int i = 0; i < C::kStages; ++i) {
        ptx::mbarrier_init(&ring.k_full[i], 1);
        ptx::mbarrier_init(&ring.v_full[i], 1);
        ptx::mbarrier_init(&ring.k_empty[i], C::kThreads / 32 / C::kRings);
        ptx::mbarrier_init(&ring.v_empty[i], C::kThreads / 32 / C::kRings);
      }
    }
    ptx::mbarrier_init_fence();
  }
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  BlockForward<C>{args, shared, shared.rings[C::kShares ? group : 0], group}.run();
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_BLOCKS_H_
