// The two products of a warp and the softmax between them, 16 rows by 16 or 32 keys a step.
//
// Quantised K and V are widened to fp16 on their way to the products. Q is divided by a power of 2 for each
// row so that it fits fp16, and O is counted in a power of 2 that is at least every scale of V so far, so
// that P does.
#ifndef TILEWISE_CUDA_SM80_SPLIT_PRODUCT_H_
#define TILEWISE_CUDA_SM80_SPLIT_PRODUCT_H_

#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/split_rows.cuh"
#include "cuda/sm80/split_softmax.cuh"
#include "cuda/tile/narrow.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm80 {

template <typename C>
struct Products {
  using T = typename C::Product;
  using Element = typename C::Element;
  using QTile = tile::SharedTile<C::kRows, C::kDim>;
  using Tile = tile::SharedTile<C::kKeys, C::kDim>;             // of 16 bits
  using Narrow = tile::SharedTile<C::kKeys, C::kRowBytes / 2>;  // as stored

  uint32_t r_q[C::kDim / 16][4];
  float r_o[C::kDim / 2];
  float top[2], sum[2];       // of rows lane / 4 and + 8; sums are the lane's own until `finish`
  int full_first, full_last;  // keys that every row of the unit sees
  float beyond;               // tile/work.cuh
  float unit;                 // of O, where V is quantised

  // By the whole block.
  __device__ __forceinline__ void begin(const SplitArgs& args, SplitShared<C>& shared, const Unit& u) {
    const ForwardParams& p = args.params;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = static_cast<int>(p.head_dim);
    const int first = u.query(args, 0), last = u.query(args, max(u.rows - 1, 0));
    full_first = last < u.w.len_q ? max(u.w.lo(last), 0) : INT32_MAX;
    full_last = last < u.w.len_q ? u.w.hi(first) : 0;
    beyond = u.w.beyond;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r, query = u.query(args, row), head = u.head(args, row);
      const bool real = row < u.rows && query < u.w.len_q;
      if (warp == 0 && lane % 4 == 0) {
        shared.lo[row] = real ? u.w.lo(query) : 0;
        shared.hi[row] = real ? u.w.hi(query) : 0;
        shared.position[row] = query + u.w.q_offset;
        shared.slope[row] = real ? p.alibi_slope(u.w.batch, head) * kLog2E : 0.0f;
      }
      top[r] = kNegativeInfinity;
      sum[r] = 0.0f;
      // Q to shared memory, some of its columns by each warp. What lay there has been read: the unit before
      // ended in a barrier.
      if constexpr (!C::kQuantized) {
        const Element* g_q =
            static_cast<const Element*>(p.q.data) + p.q.at(u.w.batch, u.w.q_begin + query, head);
#pragma unroll 2
        for (int chunk = warp; chunk < C::kDim / 8; chunk += C::kWarps)
          *reinterpret_cast<uint32_t*>(shared.q + QTile::chunk_offset(row, chunk) + 4 * (lane % 4)) =
              real ? two_of(g_q, 8 * chunk + 2 * (lane % 4), dim) : 0u;
      }
    }
    unit = kLeastUnit;
    if constexpr (C::kQuantized) widen_q(args, shared, u);
    __syncthreads();
    const uint32_t s_q = ptx::shared_address(shared.q);
#pragma unroll
    for (int k = 0; k < C::kDim / 16; ++k)
      ptx::ldmatrix_x4(r_q[k], s_q + QTile::chunk_offset(lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) r_o[i] = 0.0f;
  }

  __device__ __forceinline__ void step(const SplitArgs& args, const SplitShared<C>& shared, uint32_t s_stage,
                                       const float (*s_scale)[C::kKeys], int key0) {
    const int lane = threadIdx.x % 32;
    float r_s[kScores] = {};
    if constexpr (C::kKeys == 16) {
      // Odd and even sums apart: products wait less for each other.
      float r_odd[kScores] = {};
      scores(r_s, r_odd, s_stage);
#pragma unroll
      for (int i = 0; i < kScores; ++i) r_s[i] += r_odd[i];
    } else {
      scores(r_s, r_s, s_stage);
    }
    if constexpr (C::kQuantized) scale_scores(shared, r_s, args.params.k_scales.data ? s_scale[0] : nullptr);
    finish_scores(args, shared, r_s, key0 + 2 * (lane % 4));
    if (key0 < full_first || key0 + C::kKeys > full_last) hide(shared, r_s, key0 + 2 * (lane % 4));
    raise_rows(top, sum, r_s, r_o);
    weigh_rows(top, sum, r_s);
    if constexpr (C::kQuantized) scale_weights(args, r_s, s_scale[1]);
    uint32_t r_p[kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) r_p[i] = ptx::pack<T>(r_s[2 * i], r_s[2 * i + 1]);
    if constexpr (C::kQuantized)
      narrow_values(r_p, s_stage + C::kHalfBytes);
    else
      wide_values(r_p, s_stage + C::kHalfBytes);
  }

  // Adds up the sums of the lanes that share a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = tile::row_sum(sum[r]);
    if constexpr (C::kQuantized) {
#pragma unroll
      for (int i = 0; i < C::kDim / 2; ++i) r_o[i] *= unit;
    }
  }

  // Of this lane's row 8 * half + lane / 4 of O: columns 2 (lane % 4) + 8 j + (0, 1), or of quantised V
  // 4 (lane % 4) + 16 j + (0, 1, 2, 3).
  __device__ __forceinline__ void put_row(float* s_row, int half, float weight) const {
    const int lane = threadIdx.x % 32;
    if constexpr (C::kQuantized) {
#pragma unroll
      for (int j = 0; j < C::kDim / 16; ++j) {
        const float* r = r_o + 8 * j;
        float4 four = half ? make_float4(r[2], r[6], r[3], r[7]) : make_float4(r[0], r[4], r[1], r[5]);
        four.x *= weight, four.y *= weight, four.z *= weight, four.w *= weight;
        *reinterpret_cast<float4*>(s_row + 16 * j + 4 * (lane % 4)) = four;
      }
    } else {
#pragma unroll
      for (int j = 0; j < C::kDim / 8; ++j) {
        const float x = half ? r_o[4 * j + 2] : r_o[4 * j], y = half ? r_o[4 * j + 3] : r_o[4 * j + 1];
        *reinterpret_cast<float2*>(s_row + 8 * j + 2 * (lane % 4)) = make_float2(x * weight, y * weight);
      }
    }
  }

 private:
  static constexpr float kLeastUnit = 1.17549435e-38f;
  static constexpr int kScores = C::kKeys / 2;  // of a lane

  // r_odd: where sums over odd 16 columns go.
  __device__ __forceinline__ void scores(float (&r_s)[kScores], float (&r_odd)[kScores], uint32_t s_k) const {
    if constexpr (C::kQuantized)
      narrow_scores(r_s, r_odd, s_k);
    else
      wide_scores(r_s, r_odd, s_k);
  }

  // The power of 2 above a number that is not negative.
  static __device__ __forceinline__ float power_above(float x) {
    return __uint_as_float(min((__float_as_uint(x) & 0x7f800000u) + 0x00800000u, 0x7f800000u));
  }

  // Rows of Q, a warp each, in fp16 and in the order in which K is widened: of 16 columns 4 q + (0, 1) where
  // a product takes 2 q + (0, 1), and 4 q + (2, 3) where it takes 2 q + (8, 9).
  __device__ __forceinline__ void widen_q(const SplitArgs& args, SplitShared<C>& shared,
                                          const Unit& u) const {
    static_assert(C::kDim == 128, "four columns a lane");
    const ForwardParams& p = args.params;
    const int lane = threadIdx.x % 32, dim = static_cast<int>(p.head_dim);
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < C::kRows; row += C::kWarps) {
      const int query = u.query(args, row), head = u.head(args, row);
      const bool real = row < u.rows && query < u.w.len_q;
      const Element* g_q =
          static_cast<const Element*>(p.q.data) + p.q.at(u.w.batch, u.w.q_begin + query, head);
      float x[4], largest = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = real && 4 * lane + i < dim ? static_cast<float>(g_q[4 * lane + i]) : 0.0f;
        largest = fmaxf(largest, fabsf(x[i]));
      }
#pragma unroll
      for (int bit = 16; bit > 0; bit /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit));
      // Not where the inverse or a number is not finite: such rows are redone.
      const float of_row = largest > 1e-30f && largest < 1e30f ? power_above(largest) : 1.0f;
      const float inverse = 1.0f / of_row;
      if (lane == 0) shared.q_unit[row] = of_row;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<uint32_t*>(shared.q + QTile::chunk_offset(row, lane / 4 * 2 + half) +
                                     4 * (lane % 4)) =
            ptx::pack<T>(x[2 * half] * inverse, x[2 * half + 1] * inverse);
    }
  }

  __device__ __forceinline__ void wide_scores(float (&r_s)[kScores], float (&r_odd)[kScores],
                                              uint32_t s_k) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < C::kDim / 16; ++k) {
#pragma unroll
      for (int h = 0; h < C::kKeys / 16; ++h) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b,
                         s_k + Tile::chunk_offset(16 * h + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
        float* to = (k % 2 ? r_odd : r_s) + 8 * h;
        ptx::mma_16x8x16<T>(to, r_q[k], b[0], b[1]);
        ptx::mma_16x8x16<T>(to + 4, r_q[k], b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void wide_values(const uint32_t (&r_p)[kScores / 2], uint32_t s_v) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < C::kKeys / 16; ++h) {
#pragma unroll
      for (int n = 0; n < C::kDim / 16; ++n) {
        uint32_t b[4];
        ptx::ldmatrix_x4_transposed(b, s_v + Tile::chunk_offset(16 * h + lane % 16, 2 * n + lane / 16));
        ptx::mma_16x8x16<T>(r_o + 8 * n, r_p + 4 * h, b[0], b[1]);
        ptx::mma_16x8x16<T>(r_o + 8 * n + 4, r_p + 4 * h, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void narrow_scores(float (&r_s)[kScores], float (&r_odd)[kScores],
                                                uint32_t s_k) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < C::kDim / 16; k += 2) {
#pragma unroll
      for (int h = 0; h < C::kKeys / 16; ++h) {
        uint32_t b[4];  // keys 0 to 7 and 8 to 15 of 16 columns, then of the next 16
        ptx::ldmatrix_x4(b, s_k + Narrow::chunk_offset(16 * h + lane % 16, k + lane / 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const tile::TwoPairs pairs = tile::widen<typename C::Stored, false>(b[i]);
          ptx::mma_16x8x16<T>((i < 2 ? r_s : r_odd) + 8 * h + 4 * (i % 2), r_q[k + i / 2], pairs.first,
                              pairs.second);
        }
      }
    }
  }

  __device__ __forceinline__ void narrow_values(const uint32_t (&r_p)[kScores / 2], uint32_t s_v) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < C::kKeys / 16; ++h) {
#pragma unroll
      for (int n = 0; n < C::kDim / 16; n += 2) {
        uint32_t b[4];  // keys 0 to 7 and 8 to 15 of 16 columns, then of the next 16
        ptx::ldmatrix_x4_transposed(b, s_v + Narrow::chunk_offset(16 * h + lane % 16, n + lane / 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const tile::TwoPairs low = tile::widen<typename C::Stored, true>(b[2 * i]);
          const tile::TwoPairs high = tile::widen<typename C::Stored, true>(b[2 * i + 1]);
          float* to = r_o + 8 * (n + i);  // even columns, odd columns
          ptx::mma_16x8x16<T>(to, r_p + 4 * h, low.first, high.first);
          ptx::mma_16x8x16<T>(to + 4, r_p + 4 * h, low.second, high.second);
        }
      }
    }
  }

  __device__ __forceinline__ void scale_scores(const SplitShared<C>& shared, float (&r_s)[kScores],
                                               const float* s_scale) const {
    const int lane = threadIdx.x % 32;
    const float of_row[2] = {shared.q_unit[lane / 4], shared.q_unit[lane / 4 + 8]};
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      r_s[i] *= of_row[i / 2 % 2] * (s_scale ? s_scale[2 * (lane % 4) + tile::fragment_column(i)] : 1.0f);
  }

  // Weights to what V's elements are multiplied by, in units of O, which rise where a scale is larger.
  __device__ __forceinline__ void scale_weights(const SplitArgs& args, float (&weight)[kScores],
                                                const float* s_scale) {
    const int lane = threadIdx.x % 32;
    float scale[kScores / 2], largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      scale[i] = args.params.v_scales.data ? s_scale[2 * (lane % 4) + i % 2 + i / 2 * 8] : 1.0f;
      largest = fmaxf(largest, fabsf(scale[i]));
    }
    if (__any_sync(~0u, largest > unit)) {
#pragma unroll
      for (int bit = 1; bit < 4; bit *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit));
      const float risen = power_above(largest), fall = unit / risen;
#pragma unroll
      for (int i = 0; i < C::kDim / 2; ++i) r_o[i] *= fall;
      unit = risen;
    }
    const float inverse = 1.0f / unit;
#pragma unroll
    for (int i = 0; i < kScores; ++i) weight[i] *= scale[i / 4 * 2 + i % 2] * inverse;
  }

  // Elements d and d + 1 of a row; zeros past its end.
  static __device__ __forceinline__ uint32_t two_of(const Element* g_row, int d, int dim) {
    if (d + 1 < dim) return *reinterpret_cast<const uint32_t*>(g_row + d);
    return d < dim ? *reinterpret_cast<const uint16_t*>(g_row + d) : 0u;
  }

  // Products to scores in exponents of 2. `key` is of the first column.
  __device__ __forceinline__ void finish_scores(const SplitArgs& args, const SplitShared<C>& shared,
                                                float (&r_s)[kScores], int key) const {
    scale_products(args, r_s);
    if (args.params.alibi_slopes) slope_scores(shared, r_s, threadIdx.x % 32 / 4, key, beyond);
  }

  __device__ __forceinline__ void hide(const SplitShared<C>& shared, float (&r_s)[kScores], int key) const {
    hide_scores(shared, r_s, threadIdx.x % 32 / 4, key);
  }
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_PRODUCT_H_
