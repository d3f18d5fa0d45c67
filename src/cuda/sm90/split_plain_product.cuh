// The products of a warp and the softmax between them, 16 rows by 16 keys a step, or 32 of a byte an element:
// as in sm80/split_product.cuh, which says how quantised K and V are multiplied.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_PRODUCT_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_PRODUCT_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/split_softmax.cuh"
#include "cuda/sm90/split_plain_narrow.cuh"
#include "cuda/sm90/split_plain_walk.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

template <typename C>
struct PlainProducts {
  using T = typename C::Product;
  using Tile = tile::SharedTile<C::kKeys, C::kRowBytes / 2>;
  static constexpr int kScores = C::kKeys / 2;  // of a lane
  // Of a lane's rows in a swizzled tile: the next 16 columns are 32 bytes further in the xor, as stages begin
  // at multiples of 128.
  static constexpr int columns(int k) { return k % 4 * 32; }
  static constexpr int panel(int k) { return k / 4 * Tile::kPanelBytes; }

  uint32_t r_q[C::kDim / 16][4];
  float r_s[kScores], r_o[C::kDim / 2];
  float top[2], sum[2];       // of rows lane / 4 and + 8; sums are the lane's own until `finish`
  int full_first, full_last;  // keys that every row of the unit sees
  // Where K and V are quantised: what Q's rows were divided by; O's unit.
  float q_unit[2], unit;

  // Q of a unit, as the products take it.
  __device__ __forceinline__ void load_q(const PlainArgs& args, const PlainSpan& s, int batch) {
    const int lane = threadIdx.x % 32, group = static_cast<int>(args.group.divisor);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r, query = args.group.divide(row);
      const bool real = row < s.rows && query < s.len_q;
      const auto* g_q = reinterpret_cast<const uint32_t*>(
          args.q + batch * args.q_batch + (s.q_begin + query) * args.q_row +
          (key_head<C>() * group + row - query * group) * args.q_head + (C::kQuantized ? 8 : 4) * (lane % 4));
#pragma unroll
      for (int k = 0; k < C::kDim / 16; ++k) {
        r_q[k][r] = real ? __ldg(g_q + 8 * k) : 0u;
        // The columns 4 q + (0, 1, 2, 3) of 16 in the order in which K is widened, or 2 q and 2 q + 8.
        r_q[k][r + 2] = real ? __ldg(g_q + 8 * k + (C::kQuantized ? 1 : 4)) : 0u;
      }
    }
  }

  __device__ __forceinline__ void begin(const PlainArgs& args, const PlainSpan& s) {
    const int last = args.group.divide(s.rows - 1);
    full_first = last < s.len_q ? max(s.lo(last), 0) : INT32_MAX;
    full_last = last < s.len_q ? s.hi(0) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = kNegativeInfinity, sum[r] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) r_o[i] = 0.0f;
    unit = kLeastUnit;
    if constexpr (C::kQuantized) widen_q<C>(r_q, q_unit);
  }

  // s_scale: of the keys of K and of V, where they are quantised.
  __device__ __forceinline__ void score(const PlainArgs& args, const PlainSpan& s, uint32_t s_stage,
                                        const float (&s_scale)[2][C::kKeys], int key0) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kScores; ++i) r_s[i] = 0.0f;
    if constexpr (C::kQuantized) {
      narrow_scores<C>(r_s, r_q, s_stage);
      const bool scaled = args.params.k_scales.data;
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        r_s[i] *= q_unit[i / 2 % 2] * (scaled ? s_scale[0][2 * (lane % 4) + tile::fragment_column(i)] : 1.0f);
    } else {
      // Odd and even sums apart: products wait less for each other.
      const uint32_t s_k = s_stage + Tile::chunk_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
      float r_odd[kScores] = {};
#pragma unroll
      for (int k = 0; k < C::kDim / 16; ++k) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, (s_k ^ columns(k)) + panel(k));
        float* to = k % 2 ? r_odd : r_s;
        ptx::mma_16x8x16<T>(to, r_q[k], b[0], b[1]);
        ptx::mma_16x8x16<T>(to + 4, r_q[k], b[2], b[3]);
      }
#pragma unroll
      for (int i = 0; i < kScores; ++i) r_s[i] += r_odd[i];
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) r_s[i] *= args.scale_log2;
    if (key0 >= full_first && key0 + C::kKeys <= full_last) return;
    int lo[2], hi[2];  // keys that the lane's rows see
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r, query = args.group.divide(row);
      const bool real = row < s.rows && query < s.len_q;
      lo[r] = real ? s.lo(query) : 0;
      hi[r] = real ? s.hi(query) : 0;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int key = key0 + 2 * (lane % 4) + tile::fragment_column(i);
      if (key < lo[i / 2 % 2] || key >= hi[i / 2 % 2]) r_s[i] = kNegativeInfinity;
    }
    if (key0 < s.see_first || key0 + C::kKeys > s.see_last) clear_values(s, s_stage + C::kHalfBytes, key0);
  }

  // kFirst: nothing was summed up before.
  template <bool kFirst>
  __device__ __forceinline__ void weigh(const PlainArgs& args, uint32_t s_stage,
                                        const float (&s_scale)[2][C::kKeys], int key0) {
    const int lane = threadIdx.x % 32;
    const uint32_t s_v = s_stage + C::kHalfBytes;
    if constexpr (kFirst)
      tile::row_peaks(top, r_s);
    else
      sm80::raise_rows(top, sum, r_s, r_o);
    sm80::weigh_rows(top, sum, r_s);
    if constexpr (C::kQuantized)
      scale_weights<C>(r_s, r_o, unit, args.params.v_scales.data ? s_scale[1] : nullptr);
    uint32_t r_p[kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) r_p[i] = ptx::pack<T>(r_s[2 * i], r_s[2 * i + 1]);
    if constexpr (C::kQuantized) {
      narrow_values<C>(r_o, r_p, s_v);
    } else {
      const uint32_t s_row = s_v + Tile::chunk_offset(lane % 16, lane / 16);
#pragma unroll
      for (int n = 0; n < C::kDim / 16; ++n) {
        uint32_t b[4];
        ptx::ldmatrix_x4_transposed(b, (s_row ^ columns(n)) + panel(n));
        ptx::mma_16x8x16<T>(r_o + 8 * n, r_p, b[0], b[1]);
        ptx::mma_16x8x16<T>(r_o + 8 * n + 4, r_p, b[2], b[3]);
      }
    }
  }

  // Of this lane's row 8 * half + lane / 4 of O: columns 2 (lane % 4) + 8 j + (0, 1), or of quantised V
  // 4 (lane % 4) + 16 j + (0, 1, 2, 3).
  __device__ __forceinline__ void put_row(float* s_row, int half) const {
    const int lane = threadIdx.x % 32;
    if constexpr (C::kQuantized) {
#pragma unroll
      for (int j = 0; j < C::kDim / 16; ++j) {
        const float* r = r_o + 8 * j + 2 * half;
        *reinterpret_cast<float4*>(s_row + 16 * j + 4 * (lane % 4)) =
            make_float4(r[0] * unit, r[4] * unit, r[1] * unit, r[5] * unit);
      }
    } else {
#pragma unroll
      for (int j = 0; j < C::kDim / 8; ++j)
        *reinterpret_cast<float2*>(s_row + 8 * j + 2 * (lane % 4)) =
            half ? make_float2(r_o[4 * j + 2], r_o[4 * j + 3]) : make_float2(r_o[4 * j], r_o[4 * j + 1]);
    }
  }

 private:
  // Keys that no row sees may be anything, and become zeros: 128 bytes a lane at a time.
  __device__ __forceinline__ void clear_values(const PlainSpan& s, uint32_t s_v, int key0) const {
    constexpr int kPanels = Tile::kPanels;
    const int lane = threadIdx.x % 32, key = key0 + lane / kPanels;
    if (key < s.see_first || key >= s.see_last) {
      const uint32_t s_row = s_v + lane % kPanels * Tile::kPanelBytes + lane / kPanels * 128;
#pragma unroll 1
      for (int i = 0; i < 128; i += 16)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(s_row + i), "r"(0) : "memory");
    }
    ptx::fence_async_shared();
    __syncwarp();
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_PRODUCT_H_
