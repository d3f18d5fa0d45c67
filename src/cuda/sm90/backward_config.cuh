// The constants of one sm_90a backward kernel and its plan of shared memory.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_CONFIG_H_
#define TILEWISE_CUDA_SM90_BACKWARD_CONFIG_H_

#include "cuda/sm90/forward_config.cuh"
#include "cuda/tile/key_work.cuh"

namespace tilewise::sm90 {

template <typename ElementT, int kDimension, int kQueryRows, bool kOrderedSums = false>
struct BackwardConfig {
  using Element = ElementT;
  static constexpr int kDim = kDimension;  // of q and k, of v and dout
  static constexpr int kConsumers = 2;     // warpgroups that compute, 64 keys each
  static constexpr int kTileM = kQueryRows, kTileN = 64 * kConsumers;
  // A warpgroup that is half a step ahead needs its next queries while the other still reads the last ones.
  static constexpr int kQStages = 3, kOStages = 2, kScoreStages = 2;
  // Deterministic: key tiles add to dQ in a fixed order, from the last to the first.
  static constexpr bool kOrdered = kOrderedSums;
  using Ordered = BackwardConfig<ElementT, kDimension, kQueryRows, true>;
  // S, dP, dS and the sums together would not fit the registers: dP waits for the end of dK.
  static constexpr bool kTight = kTileM == 128;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = kTileM == 128 ? 40 : 24;
  static constexpr int kConsumerRegisters = kTileM == 128 ? 232 : 240;
  // A block of 384 threads is born with 168 each; taking more than these waits forever.
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 168 * (kConsumers + 1));

  // dQ of a tile is shared out by rows (tile of 128) or by panels of 64 columns.
  static_assert((kTileM == 128 && kDim == 64) || (kTileM == 64 && kDim > 64 && kDim <= 128));
  static constexpr bool kByRows = kTileM == 128;
  // Columns of dQ that a warpgroup sums up; a product always has 64.
  static constexpr int kLastColumns = kByRows ? 64 : kDim - 64;
  static constexpr int kGroupFloats = 64 * 64, kTileFloats = kTileM * kDim;

  using KTile = tile::SharedTile<kTileN, kDim>;
  using QTile = tile::SharedTile<kTileM, kDim>;
  using ScoreTile = tile::SharedTile<kTileN, kTileM>;  // dS transposed
};

template <typename C>
struct BackwardShared {
  alignas(tile::kSwizzleAlignment) uint8_t k[C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t q[C::kQStages][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t dout[C::kOStages][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t ds[C::kScoreStages][C::ScoreTile::kBytes];
  alignas(128) float dq[4 * C::kConsumers][64 * 16];       // one piece a warp, in fragment order
  alignas(16) float weight_shift[C::kQStages][C::kTileM];  // -lse in exponents of 2; -inf: P = 0
  alignas(16) float delta[C::kQStages][C::kTileM];
  tile::KeyWork work[kWorkSlots];
  ptx::Mbarrier k_full, k_empty, v_full, v_empty;
  ptx::Mbarrier q_full[C::kQStages], q_empty[C::kQStages];
  ptx::Mbarrier dout_full[C::kOStages], dout_empty[C::kOStages];
  ptx::Mbarrier ds_full[C::kScoreStages], ds_empty[C::kScoreStages];
  ptx::Mbarrier work_full[kWorkSlots], work_empty[kWorkSlots];
  ptx::Mbarrier nearly_done;  // the loads of a piece of work
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_CONFIG_H_
