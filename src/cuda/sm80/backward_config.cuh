// The constants of the two sm_80 backward kernels, their plans of shared memory, and what a launch passes.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_CONFIG_H_
#define TILEWISE_CUDA_SM80_BACKWARD_CONFIG_H_

#include "cuda/sm80/forward_config.cuh"
#include "cuda/tile/key_work.cuh"

namespace tilewise::sm80 {

constexpr int kBackwardWarps = 4, kBackwardThreads = 32 * kBackwardWarps;

// kBlocksOf: blocks that share a multiprocessor. kChunkOf: queries whose P and dP are in registers at a time.
// kOneSum: dV and dK do not fit the registers together, each takes a launch of its own.
template <typename ElementT, int kDimQK, int kDimVO, int kFragmentsOf, int kQueries, int kChunkOf,
          int kStagesOf, bool kGeneralScores, int kBlocksOf, bool kOneSumOf = false>
struct KeyConfig {
  using Element = ElementT;
  static constexpr int kDim = kDimQK, kDimV = kDimVO;
  static constexpr int kThreads = kBackwardThreads;
  static constexpr int kFragments = kFragmentsOf;  // of 16 keys, in a warp
  static constexpr int kTileM = kQueries, kTileN = 16 * kFragments * kBackwardWarps;
  static constexpr int kChunk = kChunkOf, kStages = kStagesOf, kBlocks = kBlocksOf;
  static constexpr bool kGeneral = kGeneralScores, kOneSum = kOneSumOf;
  static_assert(kTileM % kChunk == 0 && kFragments * kChunk <= 64, "a thread's pairs are the bits of a word");

  using QTile = tile::SharedTile<kTileM, kDim>;
  using OTile = tile::SharedTile<kTileM, kDimV>;  // dO
  using KTile = tile::SharedTile<kTileN, kDim>;
  using VTile = tile::SharedTile<kTileN, kDimV>;
};

// kKeys: of a tile in shared memory and of P in registers.
template <typename ElementT, int kDimQK, int kDimVO, int kFragmentsOf, int kKeys, int kStagesOf,
          bool kGeneralScores, int kBlocksOf>
struct QueryConfig {
  using Element = ElementT;
  static constexpr int kDim = kDimQK, kDimV = kDimVO;
  static constexpr int kThreads = kBackwardThreads;
  static constexpr int kFragments = kFragmentsOf;  // of 16 queries, in a warp
  static constexpr int kTileM = 16 * kFragments * kBackwardWarps, kTileN = kKeys;
  static constexpr int kStages = kStagesOf, kBlocks = kBlocksOf;
  static constexpr bool kGeneral = kGeneralScores;
  static_assert(kFragments * kTileN <= 64 || !kGeneral, "a thread's pairs are the bits of a word");

  using QTile = tile::SharedTile<kTileM, kDim>;
  using OTile = tile::SharedTile<kTileM, kDimV>;
  using KTile = tile::SharedTile<kTileN, kDim>;
  using VTile = tile::SharedTile<kTileN, kDimV>;
};

// What the score class general keeps of a tile of queries.
template <int kRows>
struct GeneralQueries {
  int32_t lo[kRows], hi[kRows];  // keys by band, lengths and kv_ranges
  uint32_t dropout_a[kRows], dropout_b[kRows];
};

template <typename C>
struct KeyShared {
  using Config = C;
  alignas(tile::kSwizzleAlignment) uint8_t k[C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::VTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t q[C::kStages][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t dout[C::kStages][C::OTile::kBytes];
  alignas(16) float lse[C::kStages][C::kTileM];
  alignas(16) float delta[C::kStages][C::kTileM];
  tile::KeyWork work;
  std::conditional_t<C::kGeneral, GeneralQueries<C::kTileM>, NoneShared> general[C::kStages];
};

template <typename C>
struct QueryShared {
  using Config = C;
  alignas(tile::kSwizzleAlignment) uint8_t q[C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t dout[C::OTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t k[C::kStages][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::kStages][C::VTile::kBytes];
  tile::Work work;
  std::conditional_t<C::kGeneral, GeneralShared<C::kTileM, C::kTileN>, NoneShared> general;
};

enum class Gradient : int32_t { both, dv, dk };

struct BackwardArgs {
  BackwardParams params;  // delta: D - dlse, in scratch
  tile::Order order;      // of the kernel's tiles
  int32_t queries_per_key_head = 1;
  float scale_log2 = 0.0f;  // scores to exponents of 2
  float dropout_scale = 1.0f;
  int32_t shaped = 0;  // 1: softcap, bias, ALiBi or a scale that is not positive
  Gradient gradient = Gradient::both;
  // 1: 16 bytes at a time, as base and strides allow.
  int32_t wide_q = 0, wide_k = 0, wide_v = 0, wide_dout = 0;
  int32_t wide_dq = 0, wide_dk = 0, wide_dv = 0;
};

// True where a gradient's sums, or their sum, are not finite.
template <int kFragments, int kCount>
__device__ __forceinline__ bool any_not_finite(const float (&r)[kFragments][kCount]) {
  float probe[4] = {};  // chains that do not wait for each other
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) probe[i % 4] += r[f][i];
  }
  return !isfinite((probe[0] + probe[1]) + (probe[2] + probe[3]));
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_BACKWARD_CONFIG_H_
