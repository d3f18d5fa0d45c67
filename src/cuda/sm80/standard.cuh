// Standard attention on compute capability 8.0 and up, three kernels with the scores in memory between them:
//
//   S = score(Q K^T)     fp32, natural units; a block takes one tile of 128 queries x 128 keys
//   P = e^(S - max)      in the storage type; a warp takes one row, whose maximum and sum are kept
//   O = P V / sum        a block takes one tile of queries and walks its keys, 64 at a time
//
// What the fused kernels are measured against: the same products by mma, the same masks, and nothing but the
// memory differs. A unit is a tile of queries of one head; rows of scratch have `pitch` keys.
//
// Roles. Four warps alike, 32 queries each. Shared memory: S has its Q and K tile; O has two buffers of P and
// V, one filled while the other is read; a barrier stands between a buffer's last read and its next copy, and
// between a copy's end and the first read.
//
// Invariants. Scores outside a row's interval of keys are never read, and the weights there are 0. Rows of V
// that no query of the tile sees are zero in shared memory. Where O is not finite all the same, rows are
// redone one by one (tile/exact.cuh).
#ifndef TILEWISE_CUDA_SM80_STANDARD_H_
#define TILEWISE_CUDA_SM80_STANDARD_H_

#include "cuda/sm80/forward_config.cuh"
#include "cuda/sm80/forward_load.cuh"
#include "cuda/sm80/forward_product.cuh"
#include "cuda/standard_sizes.h"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/score.cuh"

namespace tilewise::sm80 {

constexpr int kValueKeys = 64;  // of a step of O = P V

template <typename T, int kDimOf>
using StandardConfig = ForwardConfig<T, kDimOf, kDimOf, 2, cuda::kStandardKeys, false, 2>;

struct StandardArgs {
  ForwardParams params;
  int64_t first = 0;  // unit of the round
  int64_t pitch = 0;  // keys
  int32_t tiles = 0;  // of a head's queries
  int32_t key_tiles = 0;
  int32_t queries_per_key_head = 1;
  int32_t wide_q = 0, wide_k = 0, wide_v = 0, wide_o = 0;
  float* scores = nullptr;  // [unit][128][pitch]
  void* weights = nullptr;  // the same, of the storage type
  float2* ends = nullptr;   // [unit][128]: what was subtracted, and the sum of the weights
};

// Work of the round's unit `unit`; by all threads, and it ends with a barrier.
__device__ __forceinline__ void find_unit(tile::Work& w, const StandardArgs& args, int64_t unit) {
  if (threadIdx.x == 0) {
    const int64_t index = args.first + unit, head = index / args.tiles;
    tile::make_work<cuda::kStandardRows, cuda::kStandardKeys>(
        w, args.params, static_cast<int>(head / args.params.heads_q),
        static_cast<int>(head % args.params.heads_q), static_cast<int>(index % args.tiles));
  }
  __syncthreads();
}

template <typename C>
struct ScoresShared {
  alignas(tile::kSwizzleAlignment) uint8_t q[C::QTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t k[C::KTile::kBytes];
  tile::Work work;
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    standard_scores(const __grid_constant__ StandardArgs args) {
  using T = typename C::Element;
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<ScoresShared<C>*>(s_bytes);
  const ForwardParams& p = args.params;
  const tile::Work& w = shared.work;
  const int64_t unit = blockIdx.x / args.key_tiles;
  const int at = static_cast<int>(blockIdx.x % args.key_tiles), key = at * C::kTileN;
  find_unit(shared.work, args, unit);
  if (at < w.tile_first || at >= w.tile_last) return;
  load_tile<T, C::kTileM, C::kDim, C::kThreads>(
      shared.q, static_cast<const T*>(p.q.data) + p.q.at(w.batch, w.row, w.head), p.q.row_stride, 0,
      w.len_q - w.row, static_cast<int>(p.head_dim), args.wide_q);
  load_tile<T, C::kTileN, C::kDim, C::kThreads>(
      shared.k, static_cast<const T*>(p.k.data) + p.k.at(w.batch, key, w.head / args.queries_per_key_head),
      p.k.row_stride, w.see_first - key, w.see_last - key, static_cast<int>(p.head_dim), args.wide_k);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % 32, half = lane / 16;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * C::kFragments;
  float r_s[C::kFragments][C::kTileN / 2];
  scores<C>(r_s, LaneAddress(shared.q, warp_row + lane % 16, half),
            LaneAddress(shared.k, half * 8 + lane % 8, lane / 8 % 2));
  const float slope = p.alibi_slope(w.batch, w.head);
#pragma unroll
  for (int f = 0; f < C::kFragments; ++f) {
    const int row = warp_row + 16 * f + lane / 4, column = 2 * (lane % 4);
    tile::shape(r_s[f], p.scale, p.softcap, slope, w.row + row + w.q_offset, w.beyond, key, column);
    float* g_s = args.scores + (unit * C::kTileM + row) * args.pitch + key + column;
#pragma unroll
    for (int i = 0; i < C::kTileN / 2; i += 2)
      *reinterpret_cast<float2*>(g_s + i / 2 % 2 * 8 * args.pitch + tile::fragment_column(i)) =
          make_float2(r_s[f][i], r_s[f][i + 1]);
  }
}

// Keys of a lane's turn.
constexpr int kRun = 4;

template <typename C>
__global__ void __launch_bounds__(C::kThreads) standard_softmax(const __grid_constant__ StandardArgs args) {
  using T = typename C::Element;
  __shared__ tile::Work work;
  constexpr int kBlocks = C::kTileM / C::kWarps;  // of a unit
  const int64_t unit = blockIdx.x / kBlocks;
  find_unit(work, args, unit);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int in_tile = static_cast<int>(blockIdx.x % kBlocks) * C::kWarps + static_cast<int>(threadIdx.x) / 32;
  const int row = work.row + in_tile;
  const int first = work.tile_first * C::kTileN, last = work.tile_last * C::kTileN;
  const int lo = work.lo(row), hi = row < work.len_q ? work.hi(row) : lo;
  const float* g_s = args.scores + (unit * C::kTileM + in_tile) * args.pitch;
  T* g_p = static_cast<T*>(args.weights) + (unit * C::kTileM + in_tile) * args.pitch;

  // Aligned runs that hold the interval; scores beside it are passed over.
  const int begin = max(first, lo / kRun * kRun);
  const auto each = [&](int key, auto take) {
    const float4 x = *reinterpret_cast<const float4*>(g_s + key);
    const float s[kRun] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < kRun; ++i) take(i, key + i >= lo && key + i < hi, s[i]);
  };
  float top = kNegativeInfinity;
#pragma unroll 4
  for (int key = begin + lane * kRun; key < hi; key += 32 * kRun)
    each(key, [&](int, bool sees, float s) { top = sees ? fmaxf(top, s) : top; });
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, bit));
  const float shift = top == kNegativeInfinity ? 0.0f : top;
  float sum = 0.0f;
#pragma unroll 4
  for (int key = first + lane * kRun; key < last; key += 32 * kRun) {
    float weight[kRun] = {};
    if (key + kRun > lo && key < hi) {
      each(key, [&](int i, bool sees, float s) {
        weight[i] = sees ? ptx::exp2_approx((s - shift) * kLog2E) : 0.0f;
        sum += weight[i];
      });
    }
    *reinterpret_cast<uint2*>(g_p + key) =
        make_uint2(ptx::pack<T>(weight[0], weight[1]), ptx::pack<T>(weight[2], weight[3]));
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
  if (lane == 0) args.ends[unit * C::kTileM + in_tile] = make_float2(shift, sum);
}

template <typename C>
struct ValuesShared {
  using PTile = tile::SharedTile<C::kTileM, kValueKeys>;
  using VTile = tile::SharedTile<kValueKeys, C::kDimV>;
  alignas(tile::kSwizzleAlignment) uint8_t p[2][PTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[2][VTile::kBytes];
  tile::Work work;
};

// O[f] += P V of one step.
template <typename C>
__device__ __forceinline__ void multiply_step(float (&r_o)[C::kFragments][C::kDimV / 2], LaneAddress p,
                                              LaneAddress v) {
  using Shared = ValuesShared<C>;
#pragma unroll
  for (int step = 0; step < kValueKeys / 16; ++step) {
    uint32_t a[C::kFragments][4];
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
      ptx::ldmatrix_x4(a[f], p.at<typename Shared::PTile>(step) + f * 16 * 128);
    add_rows<typename C::Element, typename Shared::VTile>(r_o, a, v, step);
  }
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    standard_values(const __grid_constant__ StandardArgs args) {
  using T = typename C::Element;
  using Shared = ValuesShared<C>;
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<Shared*>(s_bytes);
  const ForwardParams& p = args.params;
  const tile::Work& w = shared.work;
  const int64_t unit = blockIdx.x;
  find_unit(shared.work, args, unit);
  const int kv_head = w.head / args.queries_per_key_head;
  const int first = w.tile_first * C::kTileN / kValueKeys, last = (w.see_last + kValueKeys - 1) / kValueKeys;
  const bool any = w.tile_first < w.tile_last;
  const auto load = [&](int at) {
    const int key = at * kValueKeys;
    load_tile<T, C::kTileM, kValueKeys, C::kThreads>(
        shared.p[at % 2], static_cast<const T*>(args.weights) + unit * C::kTileM * args.pitch + key,
        args.pitch, 0, C::kTileM, kValueKeys, true);
    load_tile<T, kValueKeys, C::kDimV, C::kThreads>(
        shared.v[at % 2], static_cast<const T*>(p.v.data) + p.v.at(w.batch, key, kv_head), p.v.row_stride,
        w.see_first - key, w.see_last - key, static_cast<int>(p.head_dim_v), args.wide_v);
    ptx::cp_async_commit();
  };
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * C::kFragments;
  float r_o[C::kFragments][C::kDimV / 2] = {};
  if (any) {
    load(first);
#pragma unroll 1
    for (int at = first; at < last; ++at) {
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (at + 1 < last) load(at + 1);
      multiply_step<C>(r_o, LaneAddress(shared.p[at % 2], warp_row + lane % 16, lane / 16),
                       LaneAddress(shared.v[at % 2], lane % 16, lane / 16));
    }
  }
  uint32_t again = 0;
#pragma unroll
  for (int f = 0; f < C::kFragments; ++f) {
    tile::RowPair ends;
    const int row = warp_row + 16 * f + lane / 4;
    ends.first = w.row + row;
    if (__any_sync(~0u, tile::spoiled(r_o[f], w, ends.first))) {
      again |= 1u << f;
      continue;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 end = args.ends[unit * C::kTileM + row + 8 * r];
      ends.end(p, w, r, end.x, end.y);
    }
    tile::write_rows<T>(p, w, r_o[f], ends, args.wide_o, lane);
  }
#pragma unroll 1
  for (int f = 0; again >> f != 0; ++f) {
    if (!(again >> f & 1)) continue;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int row = w.row + warp_row + 16 * f + i;
      if (row >= w.rows_q) break;
      const int key = w.lo(row);
      tile::exact_row<T, C::kDimV>(p, w, row, kv_head, lane, key, row < w.len_q ? w.hi(row) : key,
                                   tile::PlainPairs());
    }
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_STANDARD_H_
