// Forward attention on sm_90a by teams of warpgroups, in a block that stays: each team O =
// softmax(mask(score(Q K^T))) V for one tile of queries after the other, of one head or, where heads of a
// group have few queries, of several. For short sequences; it takes any length.
//
// Roles. A team's warpgroups take 64 rows of the tile each; a step multiplies the next tile of keys beside
// this one's values, and what fills the units meanwhile is the other team: it is at another piece, so pieces
// start and end under the other's work. Of the last warpgroup one thread a team finds its work and drives the
// copy engine, so that a piece's tiles arrive under the pieces before it.
//
// Shared memory. For each team two Q tiles, rings of K tiles, of V tiles and of descriptions of work.
//
// Invariants. Every full barrier has one arrival and the tile's bytes (of work: one arrival); every empty
// barrier counts the warps that read the buffer. A warp's rows are of one head.
#ifndef TILEWISE_CUDA_SM90_FORWARD_TEAMS_H_
#define TILEWISE_CUDA_SM90_FORWARD_TEAMS_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/finish_rows.cuh"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/sm90/forward_teams_config.cuh"
#include "cuda/sm90/forward_teams_producer.cuh"
#include "cuda/tile/clear.cuh"
#include "cuda/tile/late_softmax.cuh"
#include "cuda/tile/product.cuh"
#include "cuda/tile/score.cuh"
#include "cuda/tile/score_again.cuh"

namespace tilewise::sm90 {

template <typename C>
struct TeamConsumer {
  using T = typename C::Element;
  static constexpr int kGroupBarrier = 1;  // + warpgroup

  const TeamArgs& args;
  TeamBuffers<C>& buffers;
  const int warpgroup;             // of the block
  const uint32_t thread;           // of the block: read anew, it takes 25 clocks each time
  uint32_t count = 0;              // tiles before this one
  uint32_t pieces = 0, loads = 0;  // before this one; those that have tiles
  bool owes = false;               // the last piece's queries
  float r_o[C::kDimV / 2];
  tile::LateSoftmax softmax;

  __device__ __forceinline__ void run() {
    for (;; ++pieces) {
      ptx::mbarrier_wait(&buffers.work_full[pieces % kTeamWorks], pieces / kTeamWorks & 1);
      if (__shfl_sync(~0u, work().batch, 0) < 0) break;
      const bool holds = attend();
      finish_rows<C>(*this, of_warp(), holds && args.bulk_stores, rows_of_queries());
      release(&buffers.work_empty[pieces % kTeamWorks]);
    }
    leave_queries((loads - 1) & 1);
  }

  // Shaped scores leave no register for it.
  __device__ __forceinline__ uint32_t thread_now() const {
    return C::kShaped ? static_cast<uint32_t>(ptx::thread_afresh()) : thread;
  }
  __device__ __forceinline__ int lane_now() const { return static_cast<int>(thread_now() % 32); }
  // The query of the first of this thread's two rows.
  __device__ __forceinline__ int row_now() const {
    return work().row + (tile_row_now() & ((1 << args.rows_log2) - 1));
  }
  __device__ __forceinline__ int kv_head() const { return work().kv_head; }

 private:
  __device__ __forceinline__ int group() const { return warpgroup % C::kGroups; }
  __device__ __forceinline__ const TeamWork& work() const { return buffers.work[pieces % kTeamWorks]; }
  // The first of this thread's two rows, in the tile.
  __device__ __forceinline__ int tile_row_now() const {
    const uint32_t of_team = thread_now() % (128u * C::kGroups);
    return static_cast<int>(of_team / 32 * 16 + of_team % 32 / 4);
  }
  // The work with this warp's head; without rows where it has none.
  __device__ __forceinline__ tile::Work of_warp() const {
    tile::Work w = work();
    const int in_tile = __shfl_sync(~0u, tile_row_now() >> args.rows_log2, 0);
    if (in_tile >= work().heads) w.rows_q = w.len_q = 0;
    w.head += in_tile;
    return w;
  }
  static __device__ __forceinline__ uint32_t stage_of(uint32_t n) { return n % C::kStages; }
  static __device__ __forceinline__ uint32_t phase_of(uint32_t n) { return n / C::kStages & 1; }

  // From a shuffle the compiler knows that they are the same in all lanes.
  __device__ __forceinline__ TeamRange own_tiles() const {
    const TeamRange r = work().own[group()];
    return {__shfl_sync(~0u, r.first, 0), __shfl_sync(~0u, r.last, 0), __shfl_sync(~0u, r.full_first, 0),
            __shfl_sync(~0u, r.full_last, 0)};
  }

  // True where the team has the piece's queries in a buffer.
  __device__ __forceinline__ bool attend() {
    const int first = __shfl_sync(~0u, work().tile_first, 0), last = __shfl_sync(~0u, work().tile_last, 0);
    softmax = {};
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) r_o[i] = 0.0f;
    if (first >= last) return false;
    const TeamRange own = own_tiles();
    const uint32_t query = loads & 1;
    ptx::mbarrier_wait(&buffers.q_full[query], loads++ / 2 & 1);
    const bool sees = own.first < own.last;
    pass(sees ? last - own.last : last - first);
    if (sees) {
      walk(query, own);
      pass(own.first - first);
    } else {
      leave_queries(query ^ 1);
    }
    owes = true;
    return true;
  }

  // This warp's rows of the buffer of the piece's queries.
  __device__ __forceinline__ uint8_t* rows_of_queries() const {
    return buffers.q[(loads - 1) & 1][group()] + thread_now() % 128 / 32 * 16 * 128;
  }

  // The last piece's queries, where its output lies until it has been written: late, so that it has.
  __device__ __forceinline__ void leave_queries(uint32_t query) {
    if (!owes) return;
    owes = false;
    __syncwarp();
    if (thread_now() % 32 != 0) return;
    ptx::bulk_wait_read();
    ptx::mbarrier_arrive(&buffers.q_empty[query]);
  }

  // Tiles that only the team's other warpgroup needs. Until they are there a barrier would take the release
  // for the one of an earlier tile.
  __device__ __forceinline__ void pass(int tiles) {
#pragma unroll 1
    for (; tiles > 0; --tiles, ++count) {
      const uint32_t at = stage_of(count), phase = phase_of(count);
      ptx::mbarrier_wait(&buffers.k_full[at], phase);
      release(&buffers.k_empty[at]);
      ptx::mbarrier_wait(&buffers.v_full[at], phase);
      release(&buffers.v_empty[at]);
    }
  }

  // The next tile's scores are computed before this tile's values are added, and weighed while they are.
  __device__ __forceinline__ void walk(uint32_t query, const TeamRange& own) {
    const uint32_t q = C::QTile::k_major(buffers.q[query][group()]);
    float r_s[C::kTileN / 2];
    uint32_t r_p[C::kTileN / 4];
    int tile = own.last - 1;
    uint32_t at = stage_of(count), phase = phase_of(count);
    ptx::mbarrier_wait(&buffers.k_full[at], phase);
    tile::issue_scores<T, C::kTileN, C::kDim>(r_s, q, C::KTile::k_major(buffers.k[at]));
    leave_queries(query ^ 1);
    ptx::wgmma_wait<0>();
    ptx::pin(r_s);
    release(&buffers.k_empty[at]);
    // Where rows see a part of the first tile, the next one tells more.
    const int look_at = own.all_see(tile) ? -1 : tile - 1;
    prepare(r_s, tile, own);
    softmax.look(r_s, args.scale_log2, false);
    float of_tile[2];
    softmax.weigh(r_s, args.scale_log2, of_tile);
    softmax.keep(of_tile);
    tile::round_weights<T>(r_p, r_s);
    ptx::mbarrier_wait(&buffers.v_full[at], phase);
    // Only the first and the last tile hold keys that nobody sees.
    if (tile > own.first) {
      clear_unseen(tile, at, own);
      ptx::mbarrier_wait(&buffers.k_full[stage_of(count + 1)], phase_of(count + 1));
    }
#pragma unroll 1
    while (tile > own.first) {
      const uint32_t next = stage_of(count + 1), next_phase = phase_of(count + 1);
      tile::issue_scores<T, C::kTileN, C::kDim>(r_s, q, C::KTile::k_major(buffers.k[next]));
      ptx::mbarrier_wait(&buffers.v_full[at], phase);
      tile::issue_values<T, C::kTileN, C::kDimV>(r_o, r_p, C::VTile::mn_major(buffers.v[at]), true);
      --tile;
      const bool begins = softmax.set_room();
      ptx::wgmma_wait<1>();
      ptx::pin(r_s);
      release(&buffers.k_empty[next]);
      prepare(r_s, tile, own);
      if (tile == look_at || begins) decay_values(softmax.look(r_s, args.scale_log2, tile == look_at));
      const bool outgrown = softmax.weigh(r_s, args.scale_log2, of_tile);
      if (!outgrown) softmax.keep(of_tile);
      // A branch, which ptxas moves no wait across: the one for O must stay behind the exponentials.
      ptx::pin(r_s);
      ++count;
      if (tile > own.first) ptx::mbarrier_wait(&buffers.k_full[stage_of(count + 1)], phase_of(count + 1));
      ptx::wgmma_wait<0>();
      ptx::pin(r_o);
      ptx::pin(r_s);
      // Behind the wait, which all warps of a group have to take together.
      if (outgrown) [[unlikely]] {
        bool lost[2];
        softmax.catch_up(r_s, of_tile, lost).apply(r_o);
        if (__any_sync(~0u, lost[0] || lost[1])) {
          score_again(r_s, lost, query, ptx::afresh(tile), own);
          softmax.recover(r_s, args.scale_log2, lost);
        }
      }
      release(&buffers.v_empty[at]);
      tile::round_weights<T>(r_p, r_s);
      at = next;
      phase = next_phase;
    }
    ptx::mbarrier_wait(&buffers.v_full[at], phase);
    clear_unseen(tile, at, own);
    tile::issue_values<T, C::kTileN, C::kDimV>(r_o, r_p, C::VTile::mn_major(buffers.v[at]), true);
    ptx::wgmma_wait<0>();
    ptx::pin(r_o);
    release(&buffers.v_empty[at]);
    ++count;
  }

  // O is in the matrix unit's hands until then. `needed` must be the same in the whole warpgroup.
  __device__ __forceinline__ void decay_values(const tile::Decay& decay) {
    if (!decay.needed) return;
    ptx::wgmma_wait<0>();
    ptx::pin(r_o);
    decay.apply(r_o);
  }

  __device__ __forceinline__ void release(ptx::Mbarrier* empty) {
    __syncwarp();
    if (thread_now() % 32 == 0) ptx::mbarrier_arrive(empty);
  }

  __device__ __forceinline__ void prepare(float (&r_s)[C::kTileN / 2], int tile, const TeamRange& own) {
    prepare_columns(r_s, tile * C::kTileN, own.all_see(tile));
  }

  // Scores of the columns from `key` on.
  template <int kCount>
  __device__ __forceinline__ void prepare_columns(float (&r_some)[kCount], int key, bool full) {
    if (full && !C::kShaped) return;
    const tile::Work& w = work();
    const int row = row_now(), lane_column = 2 * (lane_now() % 4);
    if constexpr (C::kShaped) {
      const ForwardParams& p = args.params;
      const int head = min(w.head + (tile_row_now() >> args.rows_log2), static_cast<int>(p.heads_q) - 1);
      tile::shape(r_some, p.scale, p.softcap, p.alibi_slope(w.batch, head), row + w.q_offset, w.beyond, key,
                  lane_column);
    }
    if (!full) tile::hide<true>(r_some, w, row, key, lane_column);
  }

  // The scores of some of this thread's rows once more: for weights that fp32 could not hold. Eight keys at a
  // time, always in the first four registers, which then go around, so that this code is short.
  __device__ __forceinline__ void score_again(float (&r_s)[C::kTileN / 2], const bool (&rows)[2],
                                              uint32_t query, int tile, const TeamRange& own) {
#pragma unroll 1
    for (int j = 0; j < C::kTileN / 8; ++j) {
      float r_again[4];
      const int key = tile * C::kTileN + 8 * j;
      tile::score_again<T, C::kDim>(r_again, args.params, work(), kv_head(), buffers.q[query][group()],
                                    thread_now() % 128 / 32 * 16, key, lane_now());
      prepare_columns(r_again, key, own.all_see(tile));
#pragma unroll
      for (int c = 0; c < 4; ++c) r_again[c] = rows[c / 2] ? r_again[c] : r_s[c];
#pragma unroll
      for (int i = 0; i < C::kTileN / 2 - 4; ++i) r_s[i] = r_s[i + 4];
#pragma unroll
      for (int c = 0; c < 4; ++c) r_s[C::kTileN / 2 - 4 + c] = r_again[c];
    }
    // The copy engine may write the queries' buffer as soon as it is released.
    ptx::fence_async_shared();
    __syncwarp();
  }

  // Zeroes values that no row of the tile sees: of the first and the last tile of keys.
  __device__ __forceinline__ void clear_unseen(int tile, uint32_t stage, const TeamRange& own) {
    if (own.all_see(tile)) return;
    const int first = work().see_first - tile * C::kTileN, last = work().see_last - tile * C::kTileN;
    if (first <= 0 && last >= C::kTileN) return;
    tile::clear_outside<C::kTileN, C::kDimV>(buffers.v[stage], first, last, kGroupBarrier + warpgroup);
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1) forward_by_teams(const __grid_constant__ TeamArgs args) {
  ptx::grid_release();
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<TeamShared<C>*>(s_bytes);
  if (threadIdx.x == C::kThreads - 128) shared.init();
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == C::kTeams * C::kGroups) {
    ptx::release_registers<C::kProducerRegisters>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);
    ptx::grid_wait();
    if (warp < C::kTeams && ptx::elect_one()) TeamProducer<C>{args, shared.teams[warp], warp}.run();
  } else {
    ptx::take_registers<C::kConsumerRegisters>();
    TeamConsumer<C>{args, shared.teams[warpgroup / C::kGroups], warpgroup, threadIdx.x}.run();
  }
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_TEAMS_H_
