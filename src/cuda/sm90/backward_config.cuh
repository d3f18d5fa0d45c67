// The constants of one sm_90a backward kernel and its plan of shared memory.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_CONFIG_H_
#define TILEWISE_CUDA_SM90_BACKWARD_CONFIG_H_

#include <type_traits>

#include "cuda/sm90/forward_config.cuh"
#include "cuda/tile/key_work.cuh"

namespace tilewise::sm90 {

// The tiles of either kind of backward kernel.
template <int kRows, int kKeys, int kDimQK, int kDimVO>
struct BackwardTiles {
  static constexpr int kDim = kDimQK, kDimV = kDimVO;  // of q and k; of v and dout
  static constexpr int kConsumers = 2;                 // warpgroups that compute
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kTileM = kRows, kTileN = kKeys;
  static constexpr int kBlocks = 1, kBlockKeys = kKeys;  // that share a tile of keys; keys of each
  static constexpr int kGroupFloats = 64 * 64, kTileFloats = kTileM * kDim;  // of dQ: a panel, all of it

  using KTile = tile::SharedTile<kKeys, kDim>;
  using VTile = tile::SharedTile<kKeys, kDimV>;
  using QTile = tile::SharedTile<kTileM, kDim>;
  using OTile = tile::SharedTile<kTileM, kDimV>;
  using ScoreTile = tile::SharedTile<kKeys, kTileM>;  // dS transposed
};

// 64 keys a warpgroup.
template <typename ElementT, int kDimension, int kQueryRows, bool kOrderedSums = false,
          bool kShapedScores = false>
struct BackwardConfig : BackwardTiles<kQueryRows, 128, kDimension, kDimension> {
  using Tiles = BackwardTiles<kQueryRows, 128, kDimension, kDimension>;
  using Tiles::kConsumers, Tiles::kDim, Tiles::kTileM;
  using Element = ElementT;
  static constexpr bool kWide = false;
  // Deterministic: key tiles add to dQ in a fixed order, from the first to the last.
  static constexpr bool kOrdered = kOrderedSums;
  // dQ goes from registers to its sums, not by way of shared memory: measured, faster at d 64 alone.
  static constexpr bool kDirect = !kOrdered && kDim == 64;
  // A warpgroup that is half a step ahead needs its next queries while the other still reads the last ones.
  static constexpr int kQStages = 3, kOStages = kDirect ? 4 : 2, kScoreStages = 2;
  static constexpr int kSumStages = 1;
  // Softcap or ALiBi: more registers a score.
  static constexpr bool kShaped = kShapedScores;
  template <bool kOrder, bool kShape>
  using With = BackwardConfig<ElementT, kDimension, kQueryRows, kOrder, kShape>;
  // S, dP, dS and the sums together would not fit the registers: dP waits for the end of dK.
  static constexpr bool kTight = kTileM == 128 || (kShaped && kDim > 96);
  static constexpr bool kMoreForProducers = kTileM == 128 && !kOrdered && !kShaped;
  static constexpr int kProducerRegisters = kMoreForProducers ? 40 : 24;
  static constexpr int kConsumerRegisters = kMoreForProducers ? 232 : 240;
  // A block of 384 threads is born with 168 each; taking more than these waits forever.
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 168 * (kConsumers + 1));

  // Warps that bring lse and D, threads that add dQ in order.
  static constexpr int kRowWarps = kOrdered || (kTight && kShaped) ? 1 : 2, kStorers = kOrdered ? 1 : 0;

  // dQ of a tile is shared out by rows (tile of 128) or by panels of 64 columns.
  static_assert((kTileM == 128 && kDim == 64) || (kTileM == 64 && kDim > 64 && kDim <= 128));
  static constexpr bool kByRows = kTileM == 128;
  // Columns of dQ that a warpgroup sums up; a product always has 64.
  static constexpr int kLastColumns = kByRows ? 64 : kDim - 64;

  static constexpr int kSumPanels = 2;  // of dQ, of 64 x 64 sums or less
};

template <typename C>
struct BackwardShared {
  alignas(tile::kSwizzleAlignment) uint8_t k[C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t q[C::kQStages][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t dout[C::kOStages][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t ds[C::kScoreStages][C::ScoreTile::kBytes];
  alignas(
      128) float dq[C::kSumStages][C::kDirect ? 32 : C::kTileFloats];  // one piece a warp, in fragment order
  alignas(16) float weight_shift[C::kQStages][C::kTileM];              // -lse in exponents of 2; -inf: P = 0
  alignas(16) float delta[C::kQStages][C::kTileM];
  tile::KeyWork work[kWorkSlots];
  ptx::Mbarrier k_full, k_empty, v_full, v_empty;
  ptx::Mbarrier q_full[C::kQStages], q_empty[C::kQStages];
  ptx::Mbarrier dout_full[C::kOStages], dout_empty[C::kOStages];
  ptx::Mbarrier ds_full[C::kScoreStages], ds_empty[C::kScoreStages];
  ptx::Mbarrier dq_full[C::kSumStages], dq_empty[C::kSumStages];  // ordered
  ptx::Mbarrier work_full[kWorkSlots], work_empty[kWorkSlots];
  ptx::Mbarrier nearly_done;  // the loads of a piece of work
};

// The shared memory of a kernel, by its kind (backward_wide_config.cuh has the other).
template <typename C>
struct WideShared;
template <typename C>
using SharedOf = std::conditional_t<C::kWide, WideShared<C>, BackwardShared<C>>;

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_CONFIG_H_
