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

template <typename ElementT, int kWarpgroups, int kKeys, int kStageCount, int kBlocksOf,
          bool kShapedScores = false>
struct BlockConfig {
  using Element = ElementT;
  static constexpr int kDim = 64, kDimV = 64;
  static constexpr int kGroups = kWarpgroups, kThreads = 128 * kGroups;
  static constexpr int kBlocks = kBlocksOf;  // that share a multiprocessor
  static constexpr int kTileM = 64 * kGroups, kTileN = kKeys, kStages = kStageCount;
  static constexpr bool kShaped = kShapedScores;

  using QTile = tile::SharedTile<64, kDim>;
  using KTile = tile::SharedTile<kTileN, kDim>;
  using VTile = tile::SharedTile<kTileN, kDimV>;
};

template <typename C>
struct BlockShared {
  alignas(tile::kSwizzleAlignment) uint8_t q[C::kGroups][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t k[C::kStages][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::kStages][C::VTile::kBytes];
  tile::Work work;
  int32_t more;
  ptx::Mbarrier q_full[C::kGroups];
  ptx::Mbarrier k_full[C::kStages], k_empty[C::kStages];
  ptx::Mbarrier v_full[C::kStages], v_empty[C::kStages];
};

struct BlockArgs : ForwardArgs {
  tile::Pieces pieces;
  tile::FastDivide key_heads;  // query heads to key heads
};

template <typename C>
struct BlockForward {
  using T = typename C::Element;
  static constexpr int kGroupBarrier = 1;  // + warpgroup

  const BlockArgs& args;
  BlockShared<C>& shared;
  const int group;
  uint32_t count = 0, loads = 0;  // tiles, and pieces with tiles, before this one
  float r_o[C::kDimV / 2];
  tile::OnlineSoftmax softmax;

  __device__ __forceinline__ void run() {
    for (int piece = 0;; ++piece) {
      if (threadIdx.x == 0) begin(piece);
      __syncthreads();
      if (!shared.more) return;
      attend();
      finish_rows<C>(*this, work(), false, nullptr);
      __syncthreads();  // the work has been read, the buffers too
    }
  }

  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }
  // First of this thread's two rows.
  __device__ __forceinline__ int row_now() const {
    const int thread = ptx::thread_afresh();
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
    for (int i = 0; i < C::kStages && w.tile_last - 1 - i >= w.tile_first; ++i) {
      load_keys(w.tile_last - 1 - i, count + i);
      if (i == 0) {
        for (int g = 0; g < C::kGroups; ++g)
          load_tile<typename C::QTile>(shared.q[g], args.q, &shared.q_full[g], ptx::CacheHint::evict_first,
                                       w.q_begin + w.row + 64 * g, w.head, w.batch);
      }
      load_values(w.tile_last - 1 - i, count + i);
    }
  }

  __device__ __forceinline__ void load_keys(int tile, uint32_t n) {
    const tile::Work& w = work();
    load_tile<typename C::KTile>(shared.k[stage_of(n)], args.k, &shared.k_full[stage_of(n)],
                                 ptx::CacheHint::normal, w.kv_begin + tile * C::kTileN, kv_head(), w.batch);
  }
  __device__ __forceinline__ void load_values(int tile, uint32_t n) {
    const tile::Work& w = work();
    load_tile<typename C::VTile>(shared.v[stage_of(n)], args.v, &shared.v_full[stage_of(n)],
                                 ptx::CacheHint::normal, w.kv_begin + tile * C::kTileN, kv_head(), w.batch);
  }

  __device__ __forceinline__ void attend() {
    // From a shuffle the compiler knows that they are the same in all lanes.
    const int first = __shfl_sync(~0u, work().tile_first, 0), last = __shfl_sync(~0u, work().tile_last, 0);
    softmax = {};
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) r_o[i] = 0.0f;
    if (first < last) ptx::mbarrier_wait(&shared.q_full[group], loads++ & 1);
#pragma unroll 1
    for (int tile = last - 1; tile >= first; --tile, ++count) {
      const uint32_t stage = stage_of(count), phase = phase_of(count);
      float r_s[C::kTileN / 2];
      ptx::mbarrier_wait(&shared.k_full[stage], phase);
      tile::issue_scores<T, C::kTileN, C::kDim>(r_s, C::QTile::k_major(shared.q[group]),
                                                C::KTile::k_major(shared.k[stage]));
      ptx::wgmma_wait<0>();
      ptx::pin(r_s);
      release(&shared.k_empty[stage]);
      prepare(r_s, tile);
      softmax.raise(r_s, args.scale_log2).apply(r_o);
      softmax.weigh(r_s, args.scale_log2);
      uint32_t r_p[C::kTileN / 4];
      tile::round_weights<T>(r_p, r_s);
      if (tile + 1 - C::kStages >= first && threadIdx.x == 0) refill(tile, first, last);
      ptx::mbarrier_wait(&shared.v_full[stage], phase);
      clear_unseen(tile, stage);
      tile::issue_values<T, C::kTileN, C::kDimV>(r_o, r_p, C::VTile::mn_major(shared.v[stage]), true);
      ptx::wgmma_wait<0>();
      ptx::pin(r_o);
      release(&shared.v_empty[stage]);
    }
  }

  // What takes the place of this tile's keys and of the last tile's values: both have been free for a while,
  // so the waits for the other warpgroup are short.
  __device__ __forceinline__ void refill(int tile, int first, int last) {
    if (tile < last - 1) {
      ptx::mbarrier_wait(&shared.v_empty[stage_of(count - 1)], phase_of(count - 1));
      load_values(tile + 1 - C::kStages, count - 1 + C::kStages);
    }
    if (tile - C::kStages < first) return;
    ptx::mbarrier_wait(&shared.k_empty[stage_of(count)], phase_of(count));
    load_keys(tile - C::kStages, count + C::kStages);
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
    if (!w.is_full(tile)) tile::hide(r_s, w, row, key, lane_column);
  }

  // Zeroes values that no row of the tile sees: of the first and the last tile of keys.
  __device__ __forceinline__ void clear_unseen(int tile, uint32_t stage) {
    const int first = work().see_first - tile * C::kTileN, last = work().see_last - tile * C::kTileN;
    if (first <= 0 && last >= C::kTileN) return;
    // Barriers by constants: a kernel that may name any takes all sixteen, and blocks share what a
    // multiprocessor has.
    if (group == 0)
      tile::clear_outside<C::kTileN, C::kDimV>(shared.v[stage], first, last, kGroupBarrier);
    else
      tile::clear_outside<C::kTileN, C::kDimV>(shared.v[stage], first, last, kGroupBarrier + 1);
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    forward_by_blocks(const __grid_constant__ BlockArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<BlockShared<C>*>(s_bytes);
  ptx::grid_release();
  if (threadIdx.x == 0) {
    ptx::tma_prefetch_map(&args.k.map);
    ptx::tma_prefetch_map(&args.q.map);
    ptx::tma_prefetch_map(&args.v.map);
    // Nobody else touches global memory before this thread has waited, in begin().
    if (!args.pieces.uniform) ptx::grid_wait();
    for (int i = 0; i < C::kGroups; ++i) ptx::mbarrier_init(&shared.q_full[i], 1);
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(&shared.k_full[i], 1);
      ptx::mbarrier_init(&shared.v_full[i], 1);
      ptx::mbarrier_init(&shared.k_empty[i], C::kThreads / 32);
      ptx::mbarrier_init(&shared.v_empty[i], C::kThreads / 32);
    }
    ptx::mbarrier_init_fence();
  }
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  BlockForward<C>{args, shared, group}.run();
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_BLOCKS_H_
