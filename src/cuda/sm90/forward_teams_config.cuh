// What the forward kernel by teams is made of: its sizes, its shared memory.
#ifndef TILEWISE_CUDA_SM90_FORWARD_TEAMS_CONFIG_H_
#define TILEWISE_CUDA_SM90_FORWARD_TEAMS_CONFIG_H_

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/tile/pieces.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

template <typename ElementT, int kHeadDim, int kTeamsOf, int kWarpgroups, int kKeys, int kStageCount,
          bool kShapedScores = false>
struct TeamConfig {
  using Element = ElementT;
  static constexpr int kDim = kHeadDim, kDimV = kHeadDim;
  static constexpr int kTeams = kTeamsOf, kGroups = kWarpgroups, kThreads = 128 * (kTeams * kGroups + 1);
  static constexpr int kTileM = 64 * kGroups, kTileN = kKeys, kStages = kStageCount;
  static constexpr int kProducerRegisters = kTeams * kGroups == 4 ? 32 : 40;
  static constexpr int kConsumerRegisters = kTeams * kGroups == 4 ? 112 : 216;
  static constexpr bool kShaped = kShapedScores;

  using QTile = tile::SharedTile<64, kDim>;
  using KTile = tile::SharedTile<kTileN, kDim>;
  using VTile = tile::SharedTile<kTileN, kDimV>;
};

// Heads of a group that have few queries share a tile: it holds `1 << rows_log2` queries of each of
// kTileM >> rows_log2 heads. At least 16, so that a warp's rows are of one head.
struct TeamArgs : ForwardArgs {
  int32_t rows_log2 = 0;
  tile::FastDivide packs;  // tiles that the heads of a group are dealt to
};

constexpr int kTeamWorks = 4;  // pieces that are known: keys are asked for while a piece before still ends

// Key tiles that rows of a warpgroup see, and among them those that every row sees all of.
struct alignas(16) TeamRange {
  int32_t first, last, full_first, full_last;

  __device__ __forceinline__ bool all_see(int tile) const { return tile >= full_first && tile < full_last; }
};

struct TeamWork : tile::Work {
  int32_t kv_head;
  int32_t heads;     // that exist, from `head` on
  TeamRange own[2];  // of the team's warpgroups
};

// Of one team.
template <typename C>
struct TeamBuffers {
  alignas(tile::kSwizzleAlignment) uint8_t q[2][C::kGroups][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t k[C::kStages][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::kStages][C::VTile::kBytes];
  TeamWork work[kTeamWorks];  // batch < 0: there is no more
  ptx::Mbarrier q_full[2], q_empty[2];
  ptx::Mbarrier k_full[C::kStages], k_empty[C::kStages];
  ptx::Mbarrier v_full[C::kStages], v_empty[C::kStages];
  ptx::Mbarrier work_full[kTeamWorks], work_empty[kTeamWorks];

  __device__ __forceinline__ void init() {
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&q_full[i], 1);
      ptx::mbarrier_init(&q_empty[i], 4 * C::kGroups);
    }
    for (int i = 0; i < kTeamWorks; ++i) {
      ptx::mbarrier_init(&work_full[i], 1);
      ptx::mbarrier_init(&work_empty[i], 4 * C::kGroups);
    }
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(&k_full[i], 1);
      ptx::mbarrier_init(&v_full[i], 1);
      ptx::mbarrier_init(&k_empty[i], 4 * C::kGroups);
      ptx::mbarrier_init(&v_empty[i], 4 * C::kGroups);
    }
  }
};

template <typename C>
struct TeamShared {
  TeamBuffers<C> teams[C::kTeams];

  __device__ __forceinline__ void init() {
    for (int i = 0; i < C::kTeams; ++i) teams[i].init();
    ptx::mbarrier_init_fence();
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_TEAMS_CONFIG_H_
