// The constants of one sm_80 forward kernel, its plan of shared memory, and what a launch passes to it.
#ifndef TILEWISE_CUDA_SM80_FORWARD_CONFIG_H_
#define TILEWISE_CUDA_SM80_FORWARD_CONFIG_H_

#include <cstddef>
#include <type_traits>

#include "core/params.h"
#include "cuda/tile/order.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::sm80 {

constexpr size_t kMostShared = 99 * 1024;  // of a block: what compute capability 8.6, 8.9 and 12.0 have

// kBlocksOf: blocks that share a multiprocessor: what keeps its matrix units busy while one of them waits.
template <typename ElementT, int kDimQK, int kDimVO, int kFragmentsOf, int kKeys, bool kGeneralScores,
          int kBlocksOf>
struct ForwardConfig {
  using Element = ElementT;
  static constexpr int kDim = kDimQK, kDimV = kDimVO;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kFragments = kFragmentsOf;  // of 16 queries, in a warp: what a word from K or V serves
  static constexpr int kTileM = 16 * kFragments * kWarps, kTileN = kKeys;
  static constexpr bool kGeneral = kGeneralScores;
  static constexpr int kBlocks = kBlocksOf;

  using QTile = tile::SharedTile<kTileM, kDim>;
  using KTile = tile::SharedTile<kTileN, kDim>;
  using VTile = tile::SharedTile<kTileN, kDimV>;
};

// What the score class general keeps of the tile's rows.
template <int kRows, int kKeys>
struct GeneralShared {
  int32_t lo[kRows], hi[kRows];  // keys by band, lengths and kv_ranges
  int32_t lo_min, lo_max, hi_min, hi_max;
  int32_t segment_low, segment_high;
  int32_t seen[kKeys];  // by some row
};
struct NoneShared {};

template <typename C>
struct ForwardShared {
  using Config = C;
  alignas(tile::kSwizzleAlignment) uint8_t q[C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t k[C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::VTile::kBytes];
  tile::Work work;
  std::conditional_t<C::kGeneral, GeneralShared<C::kTileM, C::kTileN>, NoneShared> general;
};

struct ForwardArgs {
  ForwardParams params;
  tile::Order order;
  int32_t queries_per_key_head = 1;
  float scale_log2 = 0.0f;  // scores to exponents of 2
  // 1: 16 bytes at a time, as base and strides allow.
  int32_t wide_q = 0, wide_k = 0, wide_v = 0, wide_o = 0;
  int32_t shaped = 0;                        // fp32: softcap, ALiBi or a scale that is not positive
  int32_t paired_bias = 0, paired_mask = 0;  // 1: two neighbouring keys by one load
};

// The block's next piece of work, which make(work) fills in; false where it says that there is none. By all
// threads, between two barriers.
template <typename Work, typename Make>
__device__ __forceinline__ bool begin_work(Work& w, const Make& make) {
  __syncthreads();  // the work before has been read
  if (threadIdx.x == 0 && !make(w)) w.batch = -1;
  __syncthreads();
  return w.batch >= 0;
}

// A block's tile of queries. A packed sequence that is longer than the plan's bound has further tiles,
// tiles_m apart: next_work begins with the first one, and is false after the last.
__device__ __forceinline__ void find_work(tile::Work& w, const ForwardArgs& args, int tile_m) {
  if (threadIdx.x != 0) return;
  int tile_row;
  args.order.find(static_cast<int32_t>(blockIdx.x), w.batch, w.head, tile_row);
  w.row = (tile_row - args.order.tiles_m) * tile_m;
}

template <int kTileM, int kTileN>
__device__ __forceinline__ bool next_work(tile::Work& w, const ForwardArgs& args) {
  return begin_work(w, [&](tile::Work& next) {
    return tile::make_work<kTileM, kTileN>(next, args.params, next.batch, next.head,
                                           next.row / kTileM + args.order.tiles_m);
  });
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_CONFIG_H_
