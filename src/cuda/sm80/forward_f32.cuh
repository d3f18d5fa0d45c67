// Forward attention on fp32 inputs at fp32 accuracy, by products of 16 bits: compute capability 8.0 and up.
//
// A number x is hi + lo / 2^11, both fp16: 22 bits. Of x y the kernel takes hi hi + (hi lo + lo hi) / 2^11:
// three products at the rate of fp16, where three of TF32 run at half of it. The second sum has accumulators
// of its own, so that lo keeps its bits.
//
// Range. Q, each K tile and each V tile are scaled by a power of two that brings their largest finite number
// to [2^14, 2^15); weights are scaled by 2^14. What is 2^29 times smaller than the tile's largest number
// still has all of its 22 bits. Where eight neighbours are all 2^26 times smaller than that, and not zero,
// rows are redone one by one, as where O is not finite (tile/exact.cuh).
//
// Sums. A product of a tile starts from zero, and tiles are added in fp32, rounded: the matrix unit
// truncates.
//
// Roles. Four warps alike, 16 queries each; two or three blocks share a multiprocessor, and one's copies run
// under another's products. Shared memory: hi and lo of Q, of one K tile and one V tile, swizzled; rows that
// no query of the tile sees are zero. Barriers stand between a tile's last read and the next one's copies,
// and between those and its first read.
#ifndef TILEWISE_CUDA_SM80_FORWARD_F32_H_
#define TILEWISE_CUDA_SM80_FORWARD_F32_H_

#include "cuda/ptx/registers.cuh"
#include "cuda/sm80/forward_config.cuh"
#include "cuda/sm80/forward_product.cuh"
#include "cuda/sm80/forward_split.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/score.cuh"

namespace tilewise::sm80 {

template <int kDimOf, int kBlocksOf>
struct F32Config {
  static constexpr int kDim = kDimOf, kTileM = 64, kTileN = 64, kThreads = 128, kBlocks = kBlocksOf;
  static constexpr bool kTogether = kDim <= 64;  // K and V are in registers at the same time
  using QTile = tile::SharedTile<kTileM, kDim>;
  using KTile = tile::SharedTile<kTileN, kDim>;
};

template <typename C>
struct F32Shared {
  alignas(tile::kSwizzleAlignment) uint8_t q[2][C::QTile::kBytes];  // hi, lo
  alignas(tile::kSwizzleAlignment) uint8_t k[2][C::KTile::kBytes];
  alignas(tile::kSwizzleAlignment) uint8_t v[2][C::KTile::kBytes];
  tile::Work work;
  uint32_t largest[3];  // of Q, K, V: bits of the largest finite magnitude
};

template <typename C>
struct ForwardF32 {
  static constexpr int kScores = C::kTileN / 2, kOutputs = C::kDim / 2;

  const ForwardArgs& args;
  F32Shared<C>& shared;
  float r_s[kScores];
  float r_o[kOutputs];
  tile::OnlineSoftmax softmax;
  float scale_log2;  // of scores as they come out of the products
  bool wild = false;

  __device__ __forceinline__ ForwardF32(const ForwardArgs& a, F32Shared<C>& s) : args(a), shared(s) {}

  __device__ __forceinline__ void run() {
    const tile::Work& w = shared.work;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) r_o[i] = 0.0f;
    scale_log2 = args.scale_log2;
    if (w.tile_first < w.tile_last) {
      const float of_queries = load_queries();
      if (!args.shaped) scale_log2 *= of_queries;
#pragma unroll 1
      for (int at = w.tile_last - 1; at >= w.tile_first; --at) step(at, of_queries);
    }
    finish();
  }

 private:
  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }
  __device__ __forceinline__ int row_of() const {
    const int thread = ptx::thread_afresh();
    return shared.work.row + thread / 32 * 16 + thread % 32 / 4;
  }

  // What scaled numbers are multiplied by to be the given ones again.
  __device__ __forceinline__ float load_queries() {
    const ForwardParams& p = args.params;
    const tile::Work& w = shared.work;
    SplitTile<C::kDim> q;
    if (threadIdx.x == 0) shared.largest[0] = 0;
    __syncthreads();
    q.read(static_cast<const float*>(p.q.data) + p.q.at(w.batch, w.q_begin + w.row, w.head), p.q.row_stride,
           0, w.len_q - w.row, static_cast<int>(p.head_dim), args.wide_q);
    q.tell_largest(&shared.largest[0]);
    __syncthreads();
    wild = q.write(shared.q[0], shared.q[1], shared.largest[0]) || wild;
    return unscale(shared.largest[0]);
  }

  __device__ __forceinline__ void step(int at, float of_queries) {
    const ForwardParams& p = args.params;
    const tile::Work& w = shared.work;
    const int key = at * C::kTileN, first = w.see_first - key, last = w.see_last - key;
    const int kv_head = w.head / args.queries_per_key_head;
    const auto read = [&](SplitTile<C::kDim>& x, const RowTensor& t, int64_t dim, bool wide) {
      x.read(static_cast<const float*>(t.data) + t.at(w.batch, w.kv_begin + key, kv_head), t.row_stride,
             first, last, static_cast<int>(dim), wide);
    };
    SplitTile<C::kDim> k;
    read(k, p.k, p.head_dim, args.wide_k);
    SplitTile<C::kDim> v;
    if (C::kTogether) read(v, p.v, p.head_dim_v, args.wide_v);
    __syncthreads();  // the tile before has been read
    if (threadIdx.x == 0) shared.largest[1] = shared.largest[2] = 0;
    __syncthreads();
    k.tell_largest(&shared.largest[1]);
    if (C::kTogether) v.tell_largest(&shared.largest[2]);
    __syncthreads();
    wild = k.write(shared.k[0], shared.k[1], shared.largest[1]) || wild;
    if (!C::kTogether) {
      read(v, p.v, p.head_dim_v, args.wide_v);
      v.tell_largest(&shared.largest[2]);
      __syncthreads();
    }
    wild = v.write(shared.v[0], shared.v[1], shared.largest[2]) || wild;
    __syncthreads();
    multiply_scores(unscale(shared.largest[1]));
    const int row = row_of(), lane_column = 2 * (lane_now() % 4);
    if (args.shaped) {
      const float slope = p.alibi_slope(w.batch, w.head);
      tile::shape(r_s, p.scale * of_queries, p.softcap, slope, row + w.q_offset, w.beyond, key, lane_column);
    }
    if (!w.is_full(at)) tile::hide(r_s, w, row, key, lane_column);
    softmax.raise(r_s, scale_log2).apply(r_o);
    weigh();
    multiply_values(unscale(shared.largest[2]));
  }

  __device__ __forceinline__ void multiply_scores(float of_keys) {
    const int thread = ptx::thread_afresh(), lane = thread % 32, half = lane / 16;
    const int q_row = thread / 32 * 16 + lane % 16, k_row = half * 8 + lane % 8;
    const LaneAddress q_hi(shared.q[0], q_row, half), q_lo(shared.q[1], q_row, half);
    const LaneAddress k_hi(shared.k[0], k_row, lane / 8 % 2), k_lo(shared.k[1], k_row, lane / 8 % 2);
    float r_small[kScores];
#pragma unroll
    for (int i = 0; i < kScores; ++i) r_s[i] = r_small[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < C::kDim / 16; ++i) {
      uint32_t a_hi[4], a_lo[4];
      ptx::ldmatrix_x4(a_hi, q_hi.at<typename C::QTile>(i));
      ptx::ldmatrix_x4(a_lo, q_lo.at<typename C::QTile>(i));
#pragma unroll
      for (int n = 0; n < C::kTileN / 16; ++n) {
        uint32_t b_hi[4], b_lo[4];
        ptx::ldmatrix_x4(b_hi, k_hi.at<typename C::KTile>(i) + n * 16 * 128);
        ptx::ldmatrix_x4(b_lo, k_lo.at<typename C::KTile>(i) + n * 16 * 128);
        multiply_split(&r_s[8 * n], &r_small[8 * n], a_hi, a_lo, b_hi, b_lo);
      }
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) r_s[i] = fmaf(r_small[i], kLowUnit, r_s[i]) * of_keys;
  }

  // Scores to weights, times 2^14.
  __device__ __forceinline__ void weigh() {
    const float from[2] = {softmax.shift(0, scale_log2) - kScaledExponent,
                           softmax.shift(1, scale_log2) - kScaledExponent};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      r_s[i] = ptx::exp2_approx(__fmaf_rn(r_s[i], scale_log2, -from[i / 2 % 2]));
      softmax.sum[i / 2 % 2] += r_s[i];
    }
  }

  // 64 columns of O at a time: what their tile sums cost in registers.
  __device__ __forceinline__ void multiply_values(float of_values) {
    uint32_t p_hi[kScores / 2], p_lo[kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) split_pair(p_hi[i], p_lo[i], r_s[2 * i], r_s[2 * i + 1]);
    const int lane = lane_now();
    const LaneAddress v_hi(shared.v[0], lane % 16, lane / 16), v_lo(shared.v[1], lane % 16, lane / 16);
#pragma unroll
    for (int panel = 0; panel < C::kDim / 64; ++panel) {
      float r_large[32] = {}, r_small[32] = {};
#pragma unroll
      for (int i = 0; i < C::kTileN / 16; ++i) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          uint32_t b_hi[4], b_lo[4];
          ptx::ldmatrix_x4_transposed(b_hi, v_hi.at<typename C::KTile>(4 * panel + n) + i * 16 * 128);
          ptx::ldmatrix_x4_transposed(b_lo, v_lo.at<typename C::KTile>(4 * panel + n) + i * 16 * 128);
          multiply_split(&r_large[8 * n], &r_small[8 * n], &p_hi[4 * i], &p_lo[4 * i], b_hi, b_lo);
        }
      }
#pragma unroll
      for (int i = 0; i < 32; ++i)
        r_o[32 * panel + i] = fmaf(fmaf(r_small[i], kLowUnit, r_large[i]), of_values, r_o[32 * panel + i]);
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
    const int first = row_of(), lane = lane_now();
    if (__syncthreads_or(wild) || __any_sync(~0u, tile::spoiled(r_o, w, first))) {
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        const int row = first - lane / 4 + i;
        if (row >= w.rows_q) return;
        const int key = w.lo(row);
        tile::exact_row<float, C::kDim>(p, w, row, w.head / args.queries_per_key_head, lane, key,
                                        row < w.len_q ? w.hi(row) : key, tile::PlainPairs());
      }
      return;
    }
    softmax.finish();
    tile::RowPair ends;
    ends.first = first;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      ends.end(p, w, r, (softmax.shift(r, scale_log2) - kScaledExponent) * kLn2, softmax.sum[r]);
    tile::write_rows<float>(p, w, r_o, ends, false, lane);
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    forward_f32(const __grid_constant__ ForwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<F32Shared<C>*>(s_bytes);
  begin_work(shared.work, args, C::kTileM);
#pragma unroll 1
  while (next_work<C::kTileM, C::kTileN>(shared.work, args)) ForwardF32<C>(args, shared).run();
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_F32_H_
