// Sizes and the memory plan of the wide split forward (split_wide.cuh).
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_CONFIG_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_CONFIG_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm80/split_args.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

// kValuesInKeys: a key's value is the beginning of the key itself, and is not stored again. kEager: a step's
// scores are made before the values of the step before (split_wide_turns.cuh), which takes more stages.
template <typename Element_, int kDim_, int kDimV_, int kKeys_, int kStages_, bool kValuesInKeys_ = false,
          bool kEager_ = false>
struct WideConfig {
  using Element = Element_;
  using Stored = Element_;
  static constexpr bool kValuesInKeys = kValuesInKeys_, kEager = kEager_;
  static constexpr int kDim = kDim_, kDimV = kDimV_, kKeys = kKeys_, kStages = kStages_;
  static constexpr int kRows = cuda::kWideRows;
  // A warpgroup that copies, then two that multiply.
  static constexpr int kWarps = 12, kThreads = 32 * kWarps, kCopiers = 128, kWorkers = kThreads - kCopiers;
  static constexpr int kCopierRegisters = 56, kWorkerRegisters = 224;
  static constexpr bool kInTeams = true;
  static constexpr int kGroups = 1, kTileKeys = kKeys;  // all warps work on the same keys
  static constexpr int kHalf = kDimV / 2;               // columns of O of a warpgroup
  // Where parts are joined: columns of a lane; pieces of 128 columns of a row.
  static constexpr int kColumns = 4, kPieces = kDimV / 128;
  using QTile = tile::SharedTile<kRows, kDim>;
  using KTile = tile::SharedTile<kKeys, kDim>;
  using VTile = tile::SharedTile<kKeys, kDimV>;
  static constexpr int kValuesAt = kValuesInKeys ? 0 : KTile::kBytes;
  static constexpr int kStageBytes = KTile::kBytes + (kValuesInKeys ? 0 : VTile::kBytes);
  static __device__ __forceinline__ int part_rows(const sm80::SplitArgs& args) { return args.part_rows; }
  static_assert(kDim % 64 == 0 && kHalf % 64 == 0 && kDimV % 128 == 0 && kHalf <= 256 && kKeys % 16 == 0);
  // From each thread to its counterpart in the other warpgroup: of a step, its weights and the maxima of its
  // rows; at the end of a unit, its sums.
  struct Exchange {
    union {
      uint4 weights[kKeys / 16][128];
      float2 sums[2][128];
    };
    float2 tops[128];
  };
  static_assert(!kValuesInKeys || kDimV <= kDim);
  static_assert(kStages >= (kEager ? 3 : 2) && kKeys >= 32);
};

struct WideArgs : sm80::SplitArgs {
  // Where units have many parts, of each: the block that it begins in, and how many share it; 0 where one has
  // all of it. They are joined by the next launch then.
  int2* cuts = nullptr;
};

template <typename C>
struct WideShared {
  alignas(tile::kSwizzleAlignment) unsigned char q[C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) unsigned char stage[C::kStages][C::kStageBytes];
  typename C::Exchange exchange;  // between the warpgroups that multiply
  // Stages: filled, counting the copying threads; read, counting the warps that multiply.
  ptx::Mbarrier full[C::kStages], empty[C::kStages];
  // Of the unit's rows: keys that they see, positions of their queries, ALiBi slopes in exponents of 2.
  int32_t lo[C::kRows], hi[C::kRows], position[C::kRows];
  float slope[C::kRows];
  int32_t full_first, full_last;  // keys that every row of the unit sees
  float beyond;                   // tile/work.cuh
  int32_t scanned[C::kWarps];     // sums of scan_block
  // What copies have begun, for the products behind them: of the first one they are told, the others are
  // written before the last stage of the piece before is filled.
  static constexpr int kPieces = C::kStages + 4;
  sm80::Piece pieces[kPieces];
  sm80::ShareStart found;
  int32_t first_block, blocks;  // that share the unit
  bool last;
};

// Where a warp is in the ring of stages.
template <typename C>
struct StageRing {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ StageRing next() const {
    return stage + 1 == C::kStages ? StageRing{0, parity ^ 1} : StageRing{stage + 1, parity};
  }
};

template <typename C>
__device__ __forceinline__ void tell_first_piece() {
  ptx::barrier_arrive(2, C::kThreads);
}
template <typename C>
__device__ __forceinline__ void wait_for_first_piece() {
  ptx::barrier_sync(2, C::kThreads);
}

// Of the warps that multiply: all of them, and a thread's number among them.
template <typename C>
__device__ __forceinline__ void meet_workers() {
  ptx::barrier_sync(1, C::kWorkers);
}
template <typename C>
__device__ __forceinline__ int worker() {
  return ptx::thread_afresh() - C::kCopiers;
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_CONFIG_H_
