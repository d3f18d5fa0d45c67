// The constants of one sm_90a forward kernel and its plan of shared memory.
#ifndef TILEWISE_CUDA_SM90_FORWARD_CONFIG_H_
#define TILEWISE_CUDA_SM90_FORWARD_CONFIG_H_

#include <type_traits>

#include "cuda/ptx/tma.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::sm90 {

template <typename ElementT, int kDimQK, int kDimVO, int kWarpgroups, int kKeys, int kStagesOfK,
          int kStagesOfV, int kQueryBuffers, bool kShapedScores = false>
struct ForwardConfig {
  using Element = ElementT;
  static constexpr int kDim = kDimQK, kDimV = kDimVO;
  static constexpr int kConsumers = kWarpgroups;  // warpgroups that compute, 64 queries each
  static constexpr int kTileM = 64 * kConsumers, kTileN = kKeys;
  // A stage of V is held for longer, until the exponentials are done.
  static constexpr int kKeyStages = kStagesOfK, kValueStages = kStagesOfV;
  // Buffers of 64 queries, dealt to the warpgroups in turn. With more than one each, queries of the next
  // piece of work arrive while this one is computed.
  static constexpr int kQueries = kQueryBuffers;
  static_assert(kQueries >= kConsumers);
  // Softcap, ALiBi or a scale that is not positive: more registers a score, so a smaller tile.
  static constexpr bool kShaped = kShapedScores;
  // With three warpgroups ptxas then places the maxima in banks that the scores' fused multiply-adds conflict
  // with, masked or not: 4 % at d 64.
  static constexpr bool kMasksByBits = kConsumers != 3;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  // 65,536 registers: what the producer gives back is what the others take.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;
  static_assert(128 * (kProducerRegisters + kConsumers * kConsumerRegisters) <= 65536);

  using QTile = tile::SharedTile<64, kDim>;
  using KTile = tile::SharedTile<kTileN, kDim>;
  using VTile = tile::SharedTile<kTileN, kDimV>;
};

constexpr int kWorkSlots = 2;

template <typename C>
struct ForwardShared {
  alignas(tile::kSwizzleAlignment) uint8_t q[C::kQueries][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t k[C::kKeyStages][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::kValueStages][C::VTile::kBytes];
  tile::Work work[kWorkSlots];
  ptx::Mbarrier q_full[C::kQueries], q_empty[C::kQueries];
  ptx::Mbarrier k_full[C::kKeyStages], k_empty[C::kKeyStages];
  ptx::Mbarrier v_full[C::kValueStages], v_empty[C::kValueStages];
  ptx::Mbarrier work_full[kWorkSlots], work_empty[kWorkSlots];
};

// A place in a ring of buffers and the parity that goes with it.
template <int kSize>
struct Ring {
  static_assert((kSize & (kSize - 1)) == 0, "a power of two: one counter gives both");
  uint32_t count = 0;

  __device__ __forceinline__ uint32_t at() const { return count & (kSize - 1); }
  __device__ __forceinline__ uint32_t phase() const { return count / kSize & 1; }
  __device__ __forceinline__ void advance() { ++count; }
};

// The same for any size and stride.
template <int kSize>
struct OddRing {
  uint32_t place = 0;  // 0 .. 2 kSize - 1: two turns of the ring

  __device__ __forceinline__ uint32_t at() const { return place >= kSize ? place - kSize : place; }
  __device__ __forceinline__ uint32_t phase() const { return place >= kSize; }
  __device__ __forceinline__ void advance(int by = 1) {
    place += by;
    if (place >= 2 * kSize) place -= 2 * kSize;
  }
};

template <int kSize>
using RingOf = std::conditional_t<(kSize & (kSize - 1)) == 0, Ring<(kSize & (kSize - 1)) == 0 ? kSize : 1>,
                                  OddRing<kSize>>;

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_CONFIG_H_
