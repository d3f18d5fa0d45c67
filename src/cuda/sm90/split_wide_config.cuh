// Sizes and the memory plan of the wide split forward (split_wide.cuh).
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_CONFIG_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_CONFIG_H_

#include "cuda/sm80/split_walk.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

// kValuesInKeys: a key's value is the beginning of the key itself, and is not stored again.
template <typename Element_, int kDim_, int kDimV_, int kKeys_, int kStages_, bool kValuesInKeys_ = false>
struct WideConfig {
  using Element = Element_;
  using Stored = Element_;
  static constexpr bool kValuesInKeys = kValuesInKeys_;
  static constexpr int kDim = kDim_, kDimV = kDimV_, kKeys = kKeys_, kStages = kStages_;
  static constexpr int kRows = cuda::kWideRows, kWarps = 8, kThreads = 32 * kWarps;
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
  static_assert(kDim % 64 == 0 && kHalf % 64 == 0 && kDimV % 128 == 0 && kHalf <= 256 && kKeys % kWarps == 0);
  static_assert(kStages >= 3, "keys of the next step, values of this one, and copies under way");
  static_assert(!kValuesInKeys || kDimV <= kDim);
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
  // Each warpgroup's sums over its half of head_dim, for the other: a thread's counterpart there has the same
  // rows and keys. Two steps' worth.
  float4 sums[2][2][C::kKeys / 8][128];
  // Of the unit's rows: keys that they see, positions of their queries, ALiBi slopes in exponents of 2.
  int32_t lo[C::kRows], hi[C::kRows], position[C::kRows];
  float slope[C::kRows];
  int32_t full_first, full_last;  // keys that every row of the unit sees
  float beyond;                   // tile/work.cuh
  int32_t scanned[C::kWarps];     // sums of scan_block
  // Every warp writes all of it, the same.
  static constexpr int kPieces = C::kStages + 4;
  sm80::Piece pieces[kPieces];
  sm80::ShareStart found;
  sm80::Walk<C, WideShared<C>> walk[C::kWarps];  // of the copies, the same in each warp
  int32_t first_block, blocks;                   // that share the unit
  bool last;
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_CONFIG_H_
