// The constants of an sm_90a backward kernel for wide heads and its plan of shared memory: dK and dV of 64
// keys fill half of the registers, so one warpgroup holds dV and makes P, the other holds dK and makes dS.
// Two blocks of a cluster share a tile of 128 keys: they exchange dS, and each makes half of dQ's columns.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_WIDE_CONFIG_H_
#define TILEWISE_CUDA_SM90_BACKWARD_WIDE_CONFIG_H_

#include "cuda/ptx/cluster.cuh"
#include "cuda/sm90/backward_config.cuh"

namespace tilewise::sm90 {

template <typename ElementT, int kDimQK, int kDimVO, bool kOrderedSums = false, bool kShapedScores = false>
struct BackwardWideConfig : BackwardTiles<64, 64, kDimQK, kDimVO> {
  using Tiles = BackwardTiles<64, 64, kDimQK, kDimVO>;
  using Tiles::kConsumers, Tiles::kDim, Tiles::kBlockKeys;
  static constexpr int kBlocks = 2, kTileN = kBlocks * kBlockKeys;
  using Element = ElementT;
  static constexpr bool kWide = true;
  // Half of the peer's K and its dS take the room of a tile of dO at 256.
  static constexpr int kQStages = kDim > 192 ? 2 : 3, kOStages = kDim > 192 ? 1 : 2, kScoreStages = 2;
  static constexpr bool kOrdered = kOrderedSums;
  static constexpr bool kShaped = kShapedScores;
  template <bool kOrder, bool kShape>
  using With = BackwardWideConfig<ElementT, kDimQK, kDimVO, kOrder, kShape>;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 168 * (kConsumers + 1));

  // Warps that bring lse and D, threads that keep the turns of dQ.
  static constexpr int kRowWarps = kOrdered ? 1 : 2, kStorers = kOrdered ? 1 : 0;

  // Panels of 64 columns of dQ go to the warpgroups in turn; the middle one of three is shared by the pair.
  static constexpr bool kSharedPanel = kDim == 192;
  static_assert(kDim == 256 || kSharedPanel, "at most a panel for each warpgroup of a pair");
  static constexpr bool kByRows = false;
  static constexpr int kLastColumns = 64, kSumPanels = kDim / 64;
};

constexpr int kTurnStages = 2;

template <typename C>
__device__ __forceinline__ uint32_t rank_in_pair() {
  if constexpr (C::kBlocks == 2)
    return ptx::cluster_rank();
  else
    return 0;
}

// Of dQ, that a warpgroup of a pair makes.
template <typename C>
__device__ __forceinline__ int panel_in_pair(int group, int rank) {
  return C::kSharedPanel && group == 1 ? 1 : group + 2 * rank;
}

// The peer's `here`.
__device__ __forceinline__ uint32_t at_peer(const void* here) {
  return ptx::cluster_address(here, ptx::cluster_rank() ^ 1);
}

// What a block has of its peer's.
template <typename C>
struct PeerShared {
  alignas(
      tile::kSwizzleAlignment) uint8_t peer_k[2][C::KTile::kPanelBytes];  // the columns of this block's dQ
  alignas(tile::kSwizzleAlignment) uint8_t peer_ds[C::kScoreStages][C::ScoreTile::kBytes];
  ptx::Mbarrier peer_k_full, peer_ds_full[C::kScoreStages];
  ptx::Mbarrier ticket_full, ticket_empty;  // the second block has one; the first may send one
  uint32_t ticket;
};

template <typename C>
struct WideShared : PeerShared<C> {
  alignas(tile::kSwizzleAlignment) uint8_t k[C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::VTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t q[C::kQStages][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t dout[C::kOStages][C::OTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t ds[C::kScoreStages][C::ScoreTile::kBytes];
  alignas(16) float4 p[C::kTileM / 8][128];                // a column a thread of either warpgroup
  alignas(16) float weight_shift[C::kQStages][C::kTileM];  // -lse in exponents of 2; -inf: P = 0
  alignas(16) float delta[C::kQStages][C::kTileM];
  tile::KeyWork work[kWorkSlots];
  ptx::Mbarrier k_full, k_empty, v_full, v_empty;
  ptx::Mbarrier q_full[C::kQStages], q_empty[C::kQStages];
  ptx::Mbarrier dout_full[C::kOStages], dout_empty[C::kOStages];
  ptx::Mbarrier p_full, p_empty;
  ptx::Mbarrier turn[kTurnStages], added[kTurnStages];  // ordered: a tile of dQ may be, has been added to
  ptx::Mbarrier ds_full[C::kScoreStages], ds_empty[C::kScoreStages];  // empty: in both blocks
  ptx::Mbarrier work_full[kWorkSlots], work_empty[kWorkSlots];
  ptx::Mbarrier nearly_done;  // the loads of a piece of work
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_WIDE_CONFIG_H_
