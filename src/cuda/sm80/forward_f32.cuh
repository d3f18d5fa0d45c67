// Forward attention on fp32 inputs at fp32 accuracy, by products of 16 bits: compute capability 8.0 and up.
//
// A number x is hi + lo / 2^11, both fp16: 22 bits. Of x y the kernel takes hi hi + (hi lo + lo hi) / 2^11:
// three products at the rate of fp16, where three of TF32 run at half of it. The second sum has accumulators
// of its own, so that lo keeps its bits. Parts of q, k and v come from scratch (forward_f32_parts.cuh).
//
// Range. Every row of q, k and v has a power of two of its own. Scores are multiplied by those of their query
// and key; weights by 2^14 and by their value's over the tile's largest, so that one factor is left for the
// tile's sum. Where numbers are so far apart that bits are lost (is_wild), rows are redone one by one, as
// where O is not finite (tile/exact.cuh).
//
// Sums. A product of a tile starts from zero, and tiles are added in fp32, rounded: the matrix unit
// truncates.
//
// Roles. Four warps alike, a fragment of 16 queries each (two of them fit no registers); two or three blocks
// share a multiprocessor. Shared memory: hi and lo of Q, of one K tile and one V tile, swizzled. V(j) is
// copied under S = Q K(j)^T, K(j - 1) under the softmax and O += P V(j).
//
// Invariants. At most one group of copies is on its way. A barrier stands between the last read of a buffer
// and the copy that fills it again, and between a copy's end and the first read. Rows that no query of the
// tile sees are zero in shared memory, their scales too.
#ifndef TILEWISE_CUDA_SM80_FORWARD_F32_H_
#define TILEWISE_CUDA_SM80_FORWARD_F32_H_

#include "cuda/ptx/registers.cuh"
#include "cuda/sm80/forward_config.cuh"
#include "cuda/sm80/forward_f32_parts.cuh"
#include "cuda/sm80/forward_load.cuh"
#include "cuda/sm80/forward_product.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/score.cuh"

namespace tilewise::sm80 {

template <int kDimOf, int kFragmentsOf, int kKeys, int kBlocksOf>
struct F32Config {
  static constexpr int kFragments = kFragmentsOf;  // of 16 queries, in a warp
  static constexpr int kDim = kDimOf, kTileM = 64 * kFragments, kTileN = kKeys, kThreads = 128;
  static constexpr int kBlocks = kBlocksOf;
  using QTile = tile::SharedTile<kTileM, kDim>;
  using KTile = tile::SharedTile<kTileN, kDim>;
};

template <typename C>
struct F32Shared {
  alignas(tile::kSwizzleAlignment) uint8_t q[2][C::QTile::kBytes];  // hi, lo
  alignas(tile::kSwizzleAlignment) uint8_t k[2][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[2][C::KTile::kBytes];
  RowScale q_scales[C::kTileM], k_scales[C::kTileN], v_scales[C::kTileN];
  tile::Work work;
};

struct F32Args : ForwardArgs {
  Parts q, k, v;
};

template <typename C>
struct ForwardF32 {
  static constexpr int kScores = C::kTileN / 2, kOutputs = C::kDim / 2;

  const F32Args& args;
  F32Shared<C>& shared;
  float r_s[C::kFragments][kScores];
  float r_o[C::kFragments][kOutputs];
  tile::OnlineSoftmax softmax[C::kFragments];
  bool wild = false;

  __device__ __forceinline__ ForwardF32(const F32Args& a, F32Shared<C>& s) : args(a), shared(s) {}

  __device__ __forceinline__ void run() {
    const tile::Work& w = shared.work;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) r_o[f][i] = 0.0f;
    }
    if (w.tile_first < w.tile_last) {
      load<C::kTileM>(shared.q, shared.q_scales, args.q, w.q_begin + w.row, w.head, 0, w.len_q - w.row);
      load_keys(shared.k, shared.k_scales, args.k, w.tile_last - 1);
#pragma unroll 1
      for (int at = w.tile_last - 1; at >= w.tile_first; --at) step(at);
      ptx::cp_async_wait<0>();
    }
    finish();
  }

 private:
  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }
  static __device__ __forceinline__ int warp_row_now() {
    return ptx::thread_afresh() / 32 * 16 * C::kFragments;
  }
  __device__ __forceinline__ int row_of(int f) const {
    const int thread = ptx::thread_afresh();
    return shared.work.row + thread / 32 * 16 * C::kFragments + 16 * f + thread % 32 / 4;
  }

  // Rows [first, last) from row `row` of the sequence's tensor on; the rest of the tile is 0.
  template <int kRows, int kBytes>
  __device__ __forceinline__ void load(uint8_t (&s_parts)[2][kBytes], RowScale* s_scales, const Parts& from,
                                       int row, int head, int first, int last) {
    const int64_t at = from.at(shared.work.batch, row, head);
    load_tile<__half, kRows, C::kDim, C::kThreads>(s_parts[0], from.hi + at * C::kDim, C::kDim, first, last,
                                                   C::kDim, true);
    load_tile<__half, kRows, C::kDim, C::kThreads>(s_parts[1], from.lo + at * C::kDim, C::kDim, first, last,
                                                   C::kDim, true);
    const int thread = ptx::thread_afresh();
    if (thread >= kRows) return;
    const bool inside = static_cast<uint32_t>(thread - first) < static_cast<uint32_t>(last - first);
    const uint32_t s_to = ptx::shared_address(s_scales + thread);
    const float* g_scale = &from.scales[at + thread].unit;
    ptx::cp_async_4(s_to, g_scale, inside ? 4 : 0);
    ptx::cp_async_4(s_to + 4, g_scale + 1, inside ? 4 : 0);
  }
  __device__ __forceinline__ void load_keys(uint8_t (&s_parts)[2][C::KTile::kBytes], RowScale* s_scales,
                                            const Parts& from, int at) {
    const tile::Work& w = shared.work;
    const int key = at * C::kTileN;
    load<C::kTileN>(s_parts, s_scales, from, w.kv_begin + key, w.head / args.queries_per_key_head,
                    w.see_first - key, w.see_last - key);
    ptx::cp_async_commit();
  }

  __device__ __forceinline__ void step(int at) {
    const ForwardParams& p = args.params;
    const tile::Work& w = shared.work;
    ptx::cp_async_wait<0>();
    __syncthreads();
    load_keys(shared.v, shared.v_scales, args.v, at);
    multiply_scores();
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (at > w.tile_first) load_keys(shared.k, shared.k_scales, args.k, at - 1);
    const float most = largest_value_unit();
    const bool full = w.is_full(at);
    const int key = at * C::kTileN;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      const int row = row_of(f), lane_column = 2 * (lane_now() % 4);
      if (args.shaped) {
        const float slope = p.alibi_slope(w.batch, w.head);
        tile::shape(r_s[f], p.scale, p.softcap, slope, row + w.q_offset, w.beyond, key, lane_column);
      }
      if (!full) tile::hide(r_s[f], w, row, key, lane_column);
      softmax[f].raise(r_s[f], args.scale_log2).apply(r_o[f]);
      weigh(f);
    }
    multiply_values(most);
  }

  // S, as the given numbers have it.
  __device__ __forceinline__ void multiply_scores() {
    const int lane = lane_now(), half = lane / 16;
    const int q_row = warp_row_now() + lane % 16, k_row = half * 8 + lane % 8;
    const LaneAddress q_hi(shared.q[0], q_row, half), q_lo(shared.q[1], q_row, half);
    const LaneAddress k_hi(shared.k[0], k_row, lane / 8 % 2), k_lo(shared.k[1], k_row, lane / 8 % 2);
    float r_small[C::kFragments][kScores] = {};
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) r_s[f][i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < C::kDim / 16; ++i) {
      uint32_t a_hi[C::kFragments][4], a_lo[C::kFragments][4];
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
        ptx::ldmatrix_x4(a_hi[f], q_hi.at<typename C::QTile>(i) + f * 16 * 128);
        ptx::ldmatrix_x4(a_lo[f], q_lo.at<typename C::QTile>(i) + f * 16 * 128);
      }
#pragma unroll
      for (int n = 0; n < C::kTileN / 16; ++n) {
        uint32_t b_hi[4], b_lo[4];
        ptx::ldmatrix_x4(b_hi, k_hi.at<typename C::KTile>(i) + n * 16 * 128);
        ptx::ldmatrix_x4(b_lo, k_lo.at<typename C::KTile>(i) + n * 16 * 128);
#pragma unroll
        for (int f = 0; f < C::kFragments; ++f)
          multiply_split(&r_s[f][8 * n], &r_small[f][8 * n], a_hi[f], a_lo[f], b_hi, b_lo);
      }
    }
    const RowScale* s_scales = shared.k_scales + 2 * (lane % 4);
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      const int row = warp_row_now() + 16 * f + lane / 4;
      const float of_row[2] = {shared.q_scales[row].unit, shared.q_scales[row + 8].unit};
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        r_s[f][i] = fmaf(r_small[f][i], kLowUnit, r_s[f][i]) * of_row[i / 2 % 2] *
                    s_scales[tile::fragment_column(i)].unit;
    }
    for (int j = lane; j < C::kTileN; j += 32) {
      const RowScale key = shared.k_scales[j];
      wild = wild || is_wild(key, key.unit);
    }
  }

  // Of V's rows in the tile. Units are positive, and compare as their bits do.
  __device__ __forceinline__ float largest_value_unit() {
    uint32_t most = 0;
    for (int j = lane_now(); j < C::kTileN; j += 32)
      most = max(most, __float_as_uint(shared.v_scales[j].unit));
    const float unit = __uint_as_float(__reduce_max_sync(~0u, most));
    for (int j = lane_now(); j < C::kTileN; j += 32) wild = wild || is_wild(shared.v_scales[j], unit);
    return unit;
  }

  // Scores to weights, times 2^14.
  __device__ __forceinline__ void weigh(int f) {
    const float from[2] = {softmax[f].shift(0, args.scale_log2) - kScaledExponent,
                           softmax[f].shift(1, args.scale_log2) - kScaledExponent};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      r_s[f][i] = ptx::exp2_approx(__fmaf_rn(r_s[f][i], args.scale_log2, -from[i / 2 % 2]));
      softmax[f].sum[i / 2 % 2] += r_s[f][i];
    }
  }

  // A few columns of O at a time: what their tile sums cost in registers.
  __device__ __forceinline__ void multiply_values(float most) {
    constexpr int kColumns = C::kDim > 64 ? 32 : 16, kSums = kColumns / 2;
    const int lane = lane_now();
    const float inverse = most == 0.0f ? 0.0f : __fdividef(1.0f, most);
    const RowScale* s_scales = shared.v_scales + 2 * (lane % 4);
    uint32_t p_hi[C::kFragments][kScores / 2], p_lo[C::kFragments][kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float of_key[2] = {s_scales[tile::fragment_column(i)].unit * inverse,
                               s_scales[tile::fragment_column(i + 1)].unit * inverse};
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          split_pair(p_hi[f][i / 2 + r], p_lo[f][i / 2 + r], r_s[f][i + 2 * r] * of_key[0],
                     r_s[f][i + 2 * r + 1] * of_key[1]);
      }
    }
    const LaneAddress v_hi(shared.v[0], lane % 16, lane / 16), v_lo(shared.v[1], lane % 16, lane / 16);
#pragma unroll
    for (int part = 0; part < C::kDim / kColumns; ++part) {
      float r_large[C::kFragments][kSums] = {}, r_small[C::kFragments][kSums] = {};
#pragma unroll
      for (int i = 0; i < C::kTileN / 16; ++i) {
#pragma unroll
        for (int n = 0; n < kColumns / 16; ++n) {
          uint32_t b_hi[4], b_lo[4];
          const int columns = part * (kColumns / 16) + n;
          ptx::ldmatrix_x4_transposed(b_hi, v_hi.at<typename C::KTile>(columns) + i * 16 * 128);
          ptx::ldmatrix_x4_transposed(b_lo, v_lo.at<typename C::KTile>(columns) + i * 16 * 128);
#pragma unroll
          for (int f = 0; f < C::kFragments; ++f)
            multiply_split(&r_large[f][8 * n], &r_small[f][8 * n], &p_hi[f][4 * i], &p_lo[f][4 * i], b_hi,
                           b_lo);
        }
      }
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
        for (int i = 0; i < kSums; ++i)
          r_o[f][kSums * part + i] =
              fmaf(fmaf(r_small[f][i], kLowUnit, r_large[f][i]), most, r_o[f][kSums * part + i]);
      }
    }
  }

  // 16 keys or columns: hi hi to `large`, hi lo + lo hi to `small`.
  static __device__ __forceinline__ void multiply_split(float* large, float* small, const uint32_t* a_hi,
                                                        const uint32_t* a_lo, const uint32_t (&b_hi)[4],
                                                        const uint32_t (&b_lo)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::mma_16x8x16<__half>(large + 4 * i, a_hi, b_hi[2 * i], b_hi[2 * i + 1]);
      ptx::mma_16x8x16<__half>(small + 4 * i, a_hi, b_lo[2 * i], b_lo[2 * i + 1]);
      ptx::mma_16x8x16<__half>(small + 4 * i, a_lo, b_hi[2 * i], b_hi[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void finish() {
    const ForwardParams& p = args.params;
    const tile::Work& w = shared.work;
    const int lane = lane_now();
    if (w.tile_first < w.tile_last && ptx::thread_afresh() < C::kTileM) {
      const RowScale row = shared.q_scales[ptx::thread_afresh()];
      wild = wild || is_wild(row, row.unit);
    }
    const bool all = __syncthreads_or(wild);
    uint32_t again = 0;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      const int first = row_of(f);
      if (all || __any_sync(~0u, tile::spoiled(r_o[f], w, first))) {
        again |= 1u << f;
        continue;
      }
      softmax[f].finish();
      tile::RowPair ends;
      ends.first = first;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        ends.end(p, w, r, (softmax[f].shift(r, args.scale_log2) - kScaledExponent) * kLn2, softmax[f].sum[r]);
      tile::write_rows<float>(p, w, r_o[f], ends, false, lane);
    }
#pragma unroll 1
    for (int f = 0; again >> f != 0; ++f) {
      if (again >> f & 1) redo_rows(warp_row_now() + 16 * f);
    }
  }

  __device__ __forceinline__ void redo_rows(int row_in_tile) {
    const ForwardParams& p = args.params;
    const tile::Work& w = shared.work;
#pragma unroll 1
    for (int i = row_in_tile; i < row_in_tile + 16; ++i) {
      const int row = w.row + i;
      if (row >= w.rows_q) return;
      const int key = w.lo(row);
      tile::exact_row<float, C::kDim>(p, w, row, w.head / args.queries_per_key_head, lane_now(), key,
                                      row < w.len_q ? w.hi(row) : key, tile::PlainPairs());
    }
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) forward_f32(const __grid_constant__ F32Args args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<F32Shared<C>*>(s_bytes);
  find_work(shared.work, args, C::kTileM);
#pragma unroll 1
  while (next_work<C::kTileM, C::kTileN>(shared.work, args)) ForwardF32<C>(args, shared).run();
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_F32_H_
