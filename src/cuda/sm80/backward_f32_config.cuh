// The constants of the fp32 backward's two kernels, their plans of shared memory, what a launch passes, and
// what both do alike: turns, rows and weights in two parts, units, stores.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_F32_CONFIG_H_
#define TILEWISE_CUDA_SM80_BACKWARD_F32_CONFIG_H_

#include "cuda/sm80/backward_config.cuh"
#include "cuda/sm80/forward_f32_parts.cuh"
#include "cuda/sm80/forward_load.cuh"
#include "cuda/tile/store.cuh"

namespace tilewise::sm80 {

// kRowsOf: of the tiles that a block walks; its own tile has 64. ProductsOf: by mma.sync (f32_product.cuh) or
// wgmma (sm90/f32_product.cuh).
template <typename ProductsOf, int kDimOf, int kRowsOf, int kStagesOf, bool kGeneralScores, int kBlocksOf>
struct F32Backward {
  using Element = __half;
  using Products = ProductsOf;
  static constexpr int kDim = kDimOf, kDimV = kDimOf, kFragments = 1, kThreads = kBackwardThreads;
  static constexpr int kStages = kStagesOf, kBlocks = kBlocksOf;
  static constexpr bool kGeneral = kGeneralScores;
};

template <typename ProductsOf, int kDimOf, int kRowsOf, int kStagesOf, bool kGeneralScores, int kBlocksOf>
struct F32KeyConfig : F32Backward<ProductsOf, kDimOf, kRowsOf, kStagesOf, kGeneralScores, kBlocksOf> {
  static constexpr int kTileM = kRowsOf, kTileN = 64, kChunk = kTileM;
  static constexpr bool kOneSum = false;
  using QTile = tile::SharedTile<kTileM, kDimOf>;
  using OTile = QTile;  // dO
  using KTile = tile::SharedTile<kTileN, kDimOf>;
  using VTile = KTile;
};

template <typename ProductsOf, int kDimOf, int kRowsOf, int kStagesOf, bool kGeneralScores, int kBlocksOf>
struct F32QueryConfig : F32Backward<ProductsOf, kDimOf, kRowsOf, kStagesOf, kGeneralScores, kBlocksOf> {
  static constexpr int kTileM = 64, kTileN = kRowsOf;
  using QTile = tile::SharedTile<kTileM, kDimOf>;
  using OTile = QTile;
  using KTile = tile::SharedTile<kTileN, kDimOf>;
  using VTile = KTile;
};

struct Turns {
  int32_t taken;
  uint32_t redo;  // bit n: the n-th is left to plain fp32
};

// [2]: hi, lo. Units: what a row's numbers are to be multiplied by.
template <typename C>
struct F32KeyShared {
  using Config = C;
  alignas(tile::kSwizzleAlignment) uint8_t k[2][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[2][C::VTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t q[C::kStages][2][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t dout[C::kStages][2][C::OTile::kBytes];
  alignas(16) float lse[C::kStages][C::kTileM];
  alignas(16) float delta[C::kStages][C::kTileM];
  alignas(16) float q_units[C::kStages][C::kTileM];
  alignas(16) float dout_units[C::kStages][C::kTileM];
  float k_units[C::kTileN], v_units[C::kTileN];
  tile::KeyWork work;
  Turns turns;
  std::conditional_t<C::kGeneral, GeneralQueries<C::kTileM>, NoneShared> general[C::kStages];
};

template <typename C>
struct F32QueryShared {
  using Config = C;
  alignas(tile::kSwizzleAlignment) uint8_t q[2][C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t dout[2][C::OTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t k[C::kStages][2][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[C::kStages][2][C::VTile::kBytes];
  alignas(16) float k_units[C::kStages][C::kTileN];
  alignas(16) float v_units[C::kStages][C::kTileN];
  float q_units[C::kTileM], dout_units[C::kTileM];
  tile::Work work;
  Turns turns;
  std::conditional_t<C::kGeneral, GeneralShared<C::kTileM, C::kTileN>, NoneShared> general;
};

struct F32BackwardArgs : BackwardArgs {
  Parts q, k, v, dout_parts;
  // A word for each tile of order: bit n = the n-th tile, tiles_m apart, is left to plain fp32.
  uint32_t* redo = nullptr;
};

// Turns that have bits of their own; later ones share the last, and are all left to plain fp32.
constexpr int kLastTurn = 31;

// A block's turns: its tile, and where a packed sequence is longer than the plan's bound further ones,
// tiles_m apart. make(batch, head, tile): false where there is none; run(): false where plain fp32 is to make
// it. Only shared memory knows what the block is at: the sums of run() need the registers.
template <typename Shared, typename Make, typename Run>
__device__ __forceinline__ void take_turns(Shared& shared, const F32BackwardArgs& args, const Make& make,
                                           const Run& run) {
  const auto find = [&](int& batch, int& head, int& tile) {
    args.order.find(ptx::afresh(static_cast<int>(blockIdx.x)), batch, head, tile);
  };
  Turns& turns = shared.turns;
  if (threadIdx.x == 0) turns = {};
  __syncthreads();
#pragma unroll 1
  for (;;) {
    int batch, head, tile;
    find(batch, head, tile);
    if (!make(batch, head, tile + turns.taken * args.order.tiles_m)) break;
    const bool redo = turns.taken >= kLastTurn || !run();
    __syncthreads();
    if (threadIdx.x == 0) {
      if (redo) turns.redo |= 1u << min(turns.taken, kLastTurn);
      ++turns.taken;
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  int batch, head, tile;
  find(batch, head, tile);
  args.redo[(int64_t{batch} * args.order.heads + head) * args.order.tiles_m + tile] = turns.redo;
}

// kRows rows of a tensor in parts from row `row` of the sequence on. Rows [first, last) are read, the rest of
// the tile is 0, the units too.
template <int kRows, int kDim, int kBytes>
__device__ __forceinline__ void load_parts(uint8_t (&s_parts)[2][kBytes], float* s_units, const Parts& from,
                                           int batch, int64_t row, int head, int first, int last) {
  const int64_t at = from.at(batch, row, head);
  load_tile<__half, kRows, kDim, kBackwardThreads>(s_parts[0], from.hi + at * kDim, kDim, first, last, kDim,
                                                   true);
  load_tile<__half, kRows, kDim, kBackwardThreads>(s_parts[1], from.lo + at * kDim, kDim, first, last, kDim,
                                                   true);
  const int thread = ptx::thread_afresh();
  if (thread >= kRows) return;
  const bool inside = static_cast<uint32_t>(thread - first) < static_cast<uint32_t>(last - first);
  ptx::cp_async_4(ptx::shared_address(s_units + thread), &from.scales[inside ? at + thread : 0].unit,
                  inside ? 4 : 0);
}

// A fragment of weights times their columns' units, in two parts: an A operand. Each row of the fragment has
// a power of two of its own, of the largest in it, so that weights of any magnitude keep their bits.
template <int kCount>
struct SplitWeights {
  uint32_t hi[kCount / 2], lo[kCount / 2];
  float unit[2];

  // s_units: from this lane's first column on.
  __device__ __forceinline__ void make(const float (&w)[kCount], const float* s_units) {
    float most[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
      const float2 of = *reinterpret_cast<const float2*>(s_units + 8 * n);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        most[r] = fmaxf(most[r], fmaxf(fabsf(w[4 * n + 2 * r] * of.x), fabsf(w[4 * n + 2 * r + 1] * of.y)));
    }
    float scale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int step = 1; step <= 2; step *= 2) most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], step));
      // At least 2^-112, so that both powers are normal numbers.
      const int exponent = max(static_cast<int>(__float_as_uint(most[r]) >> 23) - 127, -112);
      scale[r] = power_of_2(kScaledExponent - exponent);
      unit[r] = power_of_2(exponent - kScaledExponent);
    }
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
      const float2 of = *reinterpret_cast<const float2*>(s_units + 8 * n);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        split_pair<Low::plain>(hi[2 * n + r], lo[2 * n + r], w[4 * n + 2 * r] * of.x * scale[r],
                               w[4 * n + 2 * r + 1] * of.y * scale[r]);
    }
  }
};

// Products of a fragment, `row` its first of this thread, to what the given numbers have. s_units: from this
// lane's first column on; s_rows: of the block's own tile.
template <int kCount>
__device__ __forceinline__ void take_row_units(float (&r)[kCount], const float* s_units, const float* s_rows,
                                               int row) {
  const float of_row[2] = {s_rows[row], s_rows[row + 8]};
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n) {
    const float2 unit = *reinterpret_cast<const float2*>(s_units + 8 * n);
#pragma unroll
    for (int i = 0; i < 4; ++i) r[4 * n + i] *= (i % 2 ? unit.y : unit.x) * of_row[i / 2];
  }
}

// Sum += weights rows: what was issued for part 0 is on its way into r_part.
template <typename Products, typename BTile, int kCount, int kSum, int kPartSum>
__device__ __forceinline__ void add_parts(float (&sum)[kSum], float (&r_part)[kPartSum],
                                          const SplitWeights<kCount>& weights,
                                          const uint8_t (&s_rows)[2][BTile::kBytes]) {
#pragma unroll
  for (int part = 0; part < kSum / kPartSum; ++part) {
    if (part > 0) Products::template issue_values<BTile>(r_part, weights.hi, weights.lo, s_rows, part);
    Products::template wait<0>();
    Products::pin(r_part);
#pragma unroll
    for (int i = 0; i < kPartSum; ++i)
      sum[part * kPartSum + i] = fmaf(r_part[i], weights.unit[i / 2 % 2], sum[part * kPartSum + i]);
  }
}

// A fragment of an fp32 gradient: as store_gradient (tile/store.cuh), which has no other type here.
template <int kCount>
__device__ __forceinline__ void store_f32(const float (&r)[kCount], float scale, const RowTensor& to,
                                          int64_t at, bool accumulate, const int (&columns)[2], int lane) {
  const float factor[2] = {scale, scale};
  auto* g_to = static_cast<float*>(to.data) + at;
  if (accumulate)
    tile::store_sum(r, factor, g_to, 8 * to.row_stride, columns, lane);
  else
    tile::store_narrow(r, factor, g_to, 8 * to.row_stride, columns, lane);
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_BACKWARD_F32_CONFIG_H_
