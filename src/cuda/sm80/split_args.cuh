// What a launch of the split forward carries, and its sizes.
#ifndef TILEWISE_CUDA_SM80_SPLIT_ARGS_H_
#define TILEWISE_CUDA_SM80_SPLIT_ARGS_H_

#include <cuda_fp16.h>

#include <type_traits>

#include "core/params.h"
#include "cuda/split_sizes.h"
#include "cuda/tile/fast_divide.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::sm80 {

// An entry of the line: one tile of rows of one sequence (or one chunk of its keys), every key head of it.
struct Span {
  tile::SequenceBand band;  // `head` is of no row
  int32_t q_tile, chunk;
  int32_t rows;                 // that are written
  int32_t see_first, see_last;  // keys that some row sees
  int32_t first, groups;        // of C::kKeys; one without keys where rows are written all the same
};

struct SplitArgs {
  ForwardParams params;
  tile::FastDivide group, page, scale_rows;
  int32_t q_tiles = 0;  // of a sequence
  int32_t chunks = 0;   // parts of fixed length that a sequence is cut into; 0: cut where blocks end
  int32_t entries = 0;  // batch * q_tiles * max(1, chunks)
  // Keys of a group lie at one stride: contiguous, or pages that are multiples of a group.
  bool one_run = false;
  bool full_rows = false;    // head_dim and head_dim_v are the build's
  bool wide_stores = false;  // rows of o begin at multiples of 16 bytes and are whole pieces of as many
  int32_t part_rows = 0;     // of a part
  float scale_log2 = 0.0f, softcap_log2 = 0.0f, inverse_cap = 0.0f;
  uint32_t* counters = nullptr;  // a byte each, zero
  float* parts = nullptr;        // SplitPart after SplitPart
  // Where no length is the device's, every entry is this one but for its batch: what blocks else find out
  // themselves.
  bool uniform = false;
  bool early = false;  // and nothing of global memory is read before the first key
  Span span = {};
  int32_t total = 0;  // groups of all units
  tile::FastDivide span_groups, heads;
  // Of configurations with kInTeams (split_schedule.cuh): blocks of a team, teams, key heads on the line, the
  // groups that a block takes at least.
  tile::FastDivide team;
  int32_t teams = 0, line_heads = 0, least_share = 0;
};

// Element: of q and o; Stored: of k and v. kKeys: of a warp's step, a group; kTileKeys: of a block's, a group
// of each warp.
template <typename Element_, int kDim_, int kWarps_, int kStages_, typename Stored_ = Element_,
          int kKeys_ = cuda::kSplitGroup>
struct SplitConfig {
  using Element = Element_;
  using Stored = Stored_;
  // One byte an element and a scale: K and V become fp16 between shared memory and the products, which is
  // exact.
  static constexpr bool kQuantized = sizeof(Stored) == 1;
  using Product = std::conditional_t<kQuantized, __half, Element>;
  static constexpr int kDim = kDim_, kDimV = kDim_, kWarps = kWarps_, kStages = kStages_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr bool kInTeams = false;
  static constexpr int kGroups = kWarps;  // of a step of the block
  static constexpr int kRows = cuda::kSplitRows, kKeys = kKeys_, kTileKeys = kKeys * kGroups;
  static constexpr int kRowBytes = kDim * sizeof(Stored);
  static constexpr int kHalfBytes = kKeys * kRowBytes, kStageBytes = 2 * kHalfBytes;  // K, then V
  static constexpr int kMergeRows = kQuantized ? 4 : 8;
  static constexpr int kPitch = kDim + 4;     // of `merge`, in floats
  static constexpr int kColumns = kDim / 32;  // of a lane, of a row, side by side
  static __device__ __forceinline__ int part_rows(const SplitArgs&) { return kRows; }
  static_assert(kDim <= 128, "wider heads leave no registers for Q");
};

struct ShareStart {
  int32_t total;      // groups of all units
  int32_t entry, at;  // where the block begins: an entry, and groups into it
};

// What a block takes of one unit: groups [at, at + count) of its keys. count 0: there is no more.
struct Piece {
  Span span;
  int32_t head, at, count;
  int32_t start;  // the unit's first group on the line
};

// Of quantised caches: the scales of each key of a stage, of K and V; what Q's rows were divided by.
template <typename C, bool kQuantized = C::kQuantized>
struct SplitScales {
  using OfStage = float (*)[C::kKeys];
  __device__ __forceinline__ OfStage of(int, uint32_t) { return nullptr; }
};
template <typename C>
struct SplitScales<C, true> {
  using OfStage = float (*)[C::kKeys];
  float scale[C::kWarps][C::kStages][2][C::kKeys];
  float q_unit[C::kRows];
  __device__ __forceinline__ OfStage of(int warp, uint32_t stage) { return scale[warp][stage]; }
};

template <typename C>
struct SplitShared : SplitScales<C> {
  alignas(128) unsigned char stage[C::kWarps][C::kStages][C::kStageBytes];
  union {
    unsigned char q[C::kRows * C::kDim * 2];           // at a unit's beginning
    float merge[C::kWarps][C::kMergeRows][C::kPitch];  // at its end
  };
  // Of the unit's rows: keys that they see, positions of their queries, ALiBi slopes in exponents of 2.
  int32_t lo[C::kRows], hi[C::kRows], position[C::kRows];
  float slope[C::kRows];
  float top[C::kWarps][C::kRows], sum[C::kWarps][C::kRows];
  int32_t scanned[C::kWarps];  // sums of scan_block
  // What copies have begun, for the products behind them. Every warp writes all of it, the same; pieces of
  // the slowest and the fastest warp are never this far apart.
  static constexpr int kPieces = C::kStages + 4;
  Piece pieces[kPieces];
  ShareStart found;
  int32_t first_block, blocks;  // that share the unit
  bool last;
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_ARGS_H_
