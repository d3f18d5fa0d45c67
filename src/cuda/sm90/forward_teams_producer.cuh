// The producer of a team: one thread that finds its work and fills its rings.
#ifndef TILEWISE_CUDA_SM90_FORWARD_TEAMS_PRODUCER_H_
#define TILEWISE_CUDA_SM90_FORWARD_TEAMS_PRODUCER_H_

#include "cuda/sm90/forward_teams_config.cuh"
#include "cuda/sm90/load_tile.cuh"

namespace tilewise::sm90 {

template <typename C>
struct TeamProducer {
  const TeamArgs& args;
  TeamBuffers<C>& to;
  const int team;                            // of the block
  uint32_t count = 0, works = 0, loads = 0;  // tiles, pieces, pieces with tiles before this one

  __device__ __forceinline__ void run() {
    const auto teams = static_cast<int32_t>(gridDim.x * C::kTeams);
    // A team's first piece lies in another block than the next team's: few pieces take many multiprocessors.
    auto index = static_cast<int32_t>(blockIdx.x + team * gridDim.x);
    while (index < args.order.total) {
      // Known when this piece has been asked for.
      const int32_t next =
          args.control ? teams + static_cast<int32_t>(atomicAdd(args.control, 1)) : index + teams;
      int32_t batch, pack, row;
      args.pieces.find(index, batch, pack, row);
      const int kv_head = args.packs.split(pack);
      // A packed sequence that is longer than the plan's bound has further tiles, tiles_m apart.
      while (load_piece(batch, kv_head, pack, row) && args.params.cu_seqlens_q.data)
        row += args.order.tiles_m;
      index = next;
    }
    wait_for_work();
    to.work[works % kTeamWorks].batch = -1;
    ptx::mbarrier_arrive(&to.work_full[works % kTeamWorks]);
    leave();
  }

 private:
  static __device__ __forceinline__ uint32_t stage_of(uint32_t n) { return n % C::kStages; }
  // A first round of buffers is free.
  static __device__ __forceinline__ uint32_t free_phase(uint32_t n) { return (n / C::kStages & 1) ^ 1; }

  __device__ __forceinline__ void wait_for_work() {
    ptx::mbarrier_wait(&to.work_empty[works % kTeamWorks], (works / kTeamWorks & 1) ^ 1);
  }

  // False where the sequence has no such rows.
  __device__ __forceinline__ bool load_piece(int batch, int kv_head, int pack, int row) {
    wait_for_work();
    TeamWork& w = to.work[works % kTeamWorks];
    const int group = args.queries_per_key_head, in_tile = C::kTileM >> args.rows_log2;
    w.kv_head = kv_head;
    w.heads = min(in_tile, group - pack * in_tile);
    if (!args.pieces.make<C::kTileN>(w, args.params, batch, kv_head * group + pack * in_tile,
                                     row << args.rows_log2, 1 << args.rows_log2))
      return false;
    for (int g = 0; g < C::kGroups; ++g) w.own[g] = own_tiles(w, g);
    ptx::mbarrier_arrive(&to.work_full[works++ % kTeamWorks]);
    const int first = w.tile_first, last = w.tile_last - 1, kv_row = w.kv_begin;
    for (int tile = last; tile >= first; --tile, ++count) {
      const uint32_t stage = stage_of(count), phase = free_phase(count);
      ptx::mbarrier_wait(&to.k_empty[stage], phase);
      load_tile<typename C::KTile>(to.k[stage], args.k, &to.k_full[stage], ptx::CacheHint::normal,
                                   kv_row + tile * C::kTileN, kv_head, batch);
      if (tile == last) load_queries(w);
      ptx::mbarrier_wait(&to.v_empty[stage], phase);
      load_tile<typename C::VTile>(to.v[stage], args.v, &to.v_full[stage], ptx::CacheHint::normal,
                                   kv_row + tile * C::kTileN, kv_head, batch);
    }
    return true;
  }

  __device__ __forceinline__ TeamRange own_tiles(const TeamWork& w, int group) const {
    const int rows = 1 << args.rows_log2, row = w.row + (64 * group & (rows - 1));
    const int last_row = min(row + min(rows, 64), w.len_q) - 1;
    const int see_first = max(w.lo(row), 0), see_last = w.hi(last_row);
    if (last_row < row || see_last <= see_first) return {0, 0, 0, 0};
    return {see_first / C::kTileN, (see_last + C::kTileN - 1) / C::kTileN,
            (max(w.lo(last_row), 0) + C::kTileN - 1) / C::kTileN, max(w.hi(row), 0) / C::kTileN};
  }

  // Boxes of as many queries as a head has in the tile, 64 at most.
  __device__ __forceinline__ void load_queries(const TeamWork& w) {
    const uint32_t at = loads & 1;
    ptx::mbarrier_wait(&to.q_empty[at], (loads++ / 2 & 1) ^ 1);
    const int box = min(1 << args.rows_log2, 64), rows = min(C::kTileM, w.heads << args.rows_log2);
    ptx::mbarrier_arrive_expect(&to.q_full[at], rows * C::QTile::kBytes / 64);
    for (int r = 0; r < rows; r += box) {
      for (int panel = 0; panel < C::QTile::kPanels; ++panel)
        ptx::tma_load(to.q[at][r / 64] + panel * C::QTile::kPanelBytes + r % 64 * 128, &args.q.map,
                      &to.q_full[at], ptx::CacheHint::evict_first, panel * tile::kPanelColumns,
                      w.q_begin + w.row + (r & ((1 << args.rows_log2) - 1)),
                      (w.head + (r >> args.rows_log2)) * args.q.head_step, w.batch * args.q.batch_step);
    }
  }

  // The last team to leave has seen all others draw their last tickets.
  __device__ __forceinline__ void leave() {
    if (args.control == nullptr) return;
    __threadfence();
    if (atomicAdd(args.control + 1, 1) + 1 == gridDim.x * C::kTeams) {
      args.control[0] = 0;
      args.control[1] = 0;
    }
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_TEAMS_PRODUCER_H_
