// Forward attention on sm_90a for short sequences: O = softmax(mask(score(Q K^T))) V for one tile of queries
// of one head, by small blocks of which several share a multiprocessor.
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
#ifndef TILEWISE_CUDA_SM90_SHORT_H_
#define TILEWISE_CUDA_SM90_SHORT_H_

#include "core/softmax.h"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/sm90/load_tile.cuh"
#include "cuda/tile/clear.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/product.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::sm90 {

template <typename ElementT, int kWarpgroups, int kKeys, int kStageCount, int kBlocksOf,
          bool kShapedScores = false>
struct ShortConfig {
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

// Where in a block's sequence of tiles the loads of K, or of V, stand.
struct Cursor {
  int32_t piece, tile;
  uint32_t issued;  // tiles
};

// Work, next and the cursors are the loading thread's; what others read of them changes between block
// barriers.
template <typename C>
struct ShortShared {
  alignas(tile::kSwizzleAlignment) uint8_t q[2][C::kGroups][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t k[C::kStages][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::kStages][C::VTile::kBytes];
  tile::Work work[2];            // of this piece and of the next one; batch < 0: there is none
  int32_t next_index, next_row;  // of the last piece that was made: in the order, and its tile of queries
  Cursor keys, values;
  int32_t made;                               // pieces
  uint32_t loads;                             // pieces with tiles, of which Q has been asked for
  uint32_t tiles_before[2], loads_before[2];  // of the two pieces
  ptx::Mbarrier q_full[2];
  ptx::Mbarrier k_full[C::kStages], k_empty[C::kStages];
  ptx::Mbarrier v_full[C::kStages], v_empty[C::kStages];
};

template <typename C>
struct ShortForward {
  using T = typename C::Element;
  static constexpr int kGroupBarrier = 1;  // + warpgroup

  const ForwardArgs& args;
  ShortShared<C>& shared;
  const int group;
  int piece = 0;
  float r_o[C::kDimV / 2];
  tile::OnlineSoftmax softmax;

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      shared.next_index = static_cast<int32_t>(blockIdx.x - gridDim.x);
      shared.next_row = 0;
      shared.loads = 0;
      shared.made = 0;
      shared.work[1].rows_q = 0;
      make_piece(0);
      shared.keys = shared.values = {0, shared.work[0].tile_last - 1, 0};
      load(C::kStages, C::kStages);
    }
    __syncthreads();
    while (work().batch >= 0) {
      attend();
      finish();
      __syncthreads();  // the work, the queries and the tiles have been read
      ++piece;
    }
  }

 private:
  __device__ __forceinline__ const tile::Work& work() const { return shared.work[piece & 1]; }
  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }
  // First of this thread's two rows.
  __device__ __forceinline__ int row_now() const {
    const int thread = ptx::thread_afresh();
    return work().row + 16 * (thread / 32) + thread % 32 / 4;
  }
  static __device__ __forceinline__ uint32_t stage_of(uint32_t n) { return n % C::kStages; }
  static __device__ __forceinline__ uint32_t phase_of(uint32_t n) { return n / C::kStages & 1; }

  // The block's piece `n`. A packed sequence that is longer than the plan's bound has further tiles of
  // queries, tiles_m apart.
  __device__ __forceinline__ void make_piece(int n) {
    tile::Work& w = shared.work[n & 1];
    const tile::Work& before = shared.work[n & 1 ^ 1];
    int batch = before.batch, head = before.head;
    shared.made = n + 1;
    shared.next_row += args.order.tiles_m;
    bool more = int64_t{shared.next_row} * C::kTileM < before.rows_q;
    for (;;) {
      if (more && tile::make_work<C::kTileM, C::kTileN>(w, args.params, batch, head, shared.next_row)) return;
      shared.next_index += static_cast<int32_t>(gridDim.x);
      if (shared.next_index >= args.order.total) break;
      int tile_row;
      args.order.find(shared.next_index, batch, head, tile_row);
      shared.next_row = tile_row;
      more = true;
    }
    w.batch = -1;
    w.tile_first = w.tile_last = 0;
  }

  // Asks for tiles until `keys` and `values` of them have been asked for since the block's start, as far as
  // the pieces are known. Waits for the buffers: they have been read, or are about to be.
  __device__ __forceinline__ void load(uint32_t keys, uint32_t values) {
    while (shared.keys.issued < keys && advance(shared.keys)) {
      const tile::Work& w = shared.work[shared.keys.piece & 1];
      const uint32_t n = shared.keys.issued++, stage = stage_of(n);
      if (n >= C::kStages) ptx::mbarrier_wait(&shared.k_empty[stage], phase_of(n) ^ 1);
      load_tile<typename C::KTile>(shared.k[stage], args.k, &shared.k_full[stage], ptx::CacheHint::normal,
                                   w.kv_begin + shared.keys.tile * C::kTileN,
                                   w.head / args.queries_per_key_head, w.batch);
      if (shared.keys.tile-- == w.tile_last - 1) {
        shared.tiles_before[shared.keys.piece & 1] = n;
        shared.loads_before[shared.keys.piece & 1] = shared.loads;
        load_queries(w);
      }
    }
    while (shared.values.issued < values && advance(shared.values)) {
      const tile::Work& w = shared.work[shared.values.piece & 1];
      const uint32_t n = shared.values.issued++, stage = stage_of(n);
      if (n >= C::kStages) ptx::mbarrier_wait(&shared.v_empty[stage], phase_of(n) ^ 1);
      load_tile<typename C::VTile>(shared.v[stage], args.v, &shared.v_full[stage], ptx::CacheHint::normal,
                                   w.kv_begin + shared.values.tile * C::kTileN,
                                   w.head / args.queries_per_key_head, w.batch);
      --shared.values.tile;
    }
  }

  // Moves on to the next piece where this one's tiles have been asked for; false where nothing is known to
  // follow.
  __device__ __forceinline__ bool advance(Cursor& cursor) {
    while (cursor.tile < shared.work[cursor.piece & 1].tile_first) {
      if (cursor.piece > piece || shared.made <= cursor.piece + 1) return false;
      ++cursor.piece;
      cursor.tile = shared.work[cursor.piece & 1].tile_last - 1;
    }
    return true;
  }

  __device__ __forceinline__ void load_queries(const tile::Work& w) {
    const uint32_t at = shared.loads++ & 1;
    ptx::mbarrier_arrive_expect(&shared.q_full[at], C::kGroups * C::QTile::kBytes);
    for (int g = 0; g < C::kGroups; ++g)
      ptx::tma_load(shared.q[at][g], &args.q.map, &shared.q_full[at], ptx::CacheHint::evict_first, 0,
                    w.q_begin + w.row + 64 * g, w.head * args.q.head_step, w.batch * args.q.batch_step);
  }

  __device__ __forceinline__ void attend() {
    // From a shuffle the compiler knows that they are the same in all lanes.
    const int first = __shfl_sync(~0u, work().tile_first, 0), last = __shfl_sync(~0u, work().tile_last, 0);
    softmax = {};
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) r_o[i] = 0.0f;
    if (first >= last) {
      if (threadIdx.x == 0) look_ahead(shared.keys.issued);
      return;
    }
    uint32_t count = __shfl_sync(~0u, shared.tiles_before[piece & 1], 0);
    const uint32_t loads = __shfl_sync(~0u, shared.loads_before[piece & 1], 0), query = loads & 1;
    ptx::mbarrier_wait(&shared.q_full[query], loads / 2 & 1);
#pragma unroll 1
    for (int tile = last - 1; tile >= first; --tile, ++count) {
      const uint32_t stage = stage_of(count), phase = phase_of(count);
      float r_s[C::kTileN / 2];
      ptx::mbarrier_wait(&shared.k_full[stage], phase);
      tile::issue_scores<T, C::kTileN, C::kDim>(r_s, C::QTile::k_major(shared.q[query][group]),
                                                C::KTile::k_major(shared.k[stage]));
      if (tile == last - 1 && threadIdx.x == 0) look_ahead(count);
      ptx::wgmma_wait<0>();
      ptx::pin(r_s);
      release(&shared.k_empty[stage]);
      prepare(r_s, tile);
      softmax.raise(r_s, args.scale_log2).apply(r_o);
      softmax.weigh(r_s, args.scale_log2);
      uint32_t r_p[C::kTileN / 4];
      tile::round_weights<T>(r_p, r_s);
      if (threadIdx.x == 0) load(count + 1 + C::kStages, count + C::kStages);
      ptx::mbarrier_wait(&shared.v_full[stage], phase);
      clear_unseen(tile, stage);
      tile::issue_values<T, C::kTileN, C::kDimV>(r_o, r_p, C::VTile::mn_major(shared.v[stage]), true);
      ptx::wgmma_wait<0>();
      ptx::pin(r_o);
      release(&shared.v_empty[stage]);
    }
  }

  // While the first scores of a piece are computed: the next piece, and its first tiles, as far as there are
  // buffers.
  __device__ __forceinline__ void look_ahead(uint32_t count) {
    make_piece(piece + 1);
    load(count + C::kStages, count + C::kStages);
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

  __device__ __forceinline__ void finish() {
    const ForwardParams& p = args.params;
    const tile::Work& w = work();
    if (__any_sync(~0u, tile::spoiled(r_o, w, row_now()))) {
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        const int row = __shfl_sync(~0u, row_now() + i, 0);
        if (row >= w.rows_q) continue;
        const int key = w.lo(row), last = row < w.len_q ? w.hi(row) : key;
        tile::exact_row<T, C::kDimV>(p, w, row, w.head / args.queries_per_key_head, lane_now(), key, last,
                                     tile::PlainPairs());
      }
      return;
    }
    softmax.finish();
    tile::RowPair ends;
    ends.first = row_now();
#pragma unroll
    for (int r = 0; r < 2; ++r) ends.end(p, w, r, softmax.shift(r, args.scale_log2) * kLn2, softmax.sum[r]);
    tile::write_rows<T>(p, w, r_o, ends, args.wide_stores, lane_now());
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    short_forward(const __grid_constant__ ForwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<ShortShared<C>*>(s_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) ptx::mbarrier_init(&shared.q_full[i], 1);
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(&shared.k_full[i], 1);
      ptx::mbarrier_init(&shared.v_full[i], 1);
      ptx::mbarrier_init(&shared.k_empty[i], C::kThreads / 32);
      ptx::mbarrier_init(&shared.v_empty[i], C::kThreads / 32);
    }
    ptx::mbarrier_init_fence();
  }
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  ShortForward<C>{args, shared, group}.run();
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SHORT_H_
