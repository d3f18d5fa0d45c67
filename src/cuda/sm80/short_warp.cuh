// Forward attention of sequences of at most 64 keys, compute capability 8.0 and up: a softmax over a whole
// row.
//
// Roles. A warp alone takes a piece: up to all queries of one head, 16 at a time. Warps share nothing: what
// one computes runs under the loads of the others.
//
// Memory. K and V of the head lie in the warp's registers, read once, 16 bytes a lane, and all at once, so
// that a multiprocessor has 64 KB and more on the way. V is transposed there. Shared memory holds the warp's
// Work.
//
// Invariants. Keys that no row of the piece sees are zero in registers: their weights are 0, but 0 * NaN is
// not. Where O is not finite all the same, or where a packed sequence is longer than the plan's bound, rows
// are done one by one (tile/exact.cuh).
#ifndef TILEWISE_CUDA_SM80_SHORT_WARP_H_
#define TILEWISE_CUDA_SM80_SHORT_WARP_H_

#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm80/short_rows.cuh"

namespace tilewise::sm80 {

template <typename C>
struct WarpPiece {
  using T = typename C::Element;
  static constexpr int kChunks = C::kDim / 32, kBlocks = C::kKeys / 8;  // blocks of eight keys

  const ShortArgs& args;
  const ShortWork& w;
  uint4 r_k[kBlocks][kChunks];
  uint32_t r_v[kBlocks][4 * kChunks];

  // Computed again at each use: kept, what hangs on the lane costs registers that keys and values need.
  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }

  __device__ __forceinline__ void run() {
    uint4 r_q[kChunks][2];
    if (fits()) {
      load_keys();
      load_queries<T, C::kDim>(r_q, args.params, w, w.row, lane_now());
      load_values();
    }
    const int last = min(w.row + args.rows, w.rows_q);
#pragma unroll 1
    for (int row = w.row; row < last; row += 16) {
      if (!fits() || !attend(r_q, row, row + 16 < last)) exact_rows<T, C::kDim>(args, w, row, 16, lane_now());
    }
  }

 private:
  __device__ __forceinline__ bool fits() const { return w.see_last <= C::kKeys; }

  // Leaves the next 16 queries on their way, where there are more. False where O is not finite.
  __device__ __forceinline__ bool attend(uint4 (&r_q)[kChunks][2], int row, bool more) {
    float r_s[C::kKeys / 2] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) multiply_chunk<T>(&r_s[4 * n], r_q[c], r_k[n][c]);
    }
    if (more) load_queries<T, C::kDim>(r_q, args.params, w, row + 16, lane_now());
    finish_scores(r_s, args, w, row, 0, lane_now());
    tile::OnlineSoftmax softmax;
    tile::row_peaks(softmax.top, r_s);
    softmax.weigh(r_s, args.scale_log2);
    float r_o[C::kDim / 2] = {};
    multiply_values(r_o, r_s);
    return end_rows<T, C::kDim>(r_o, softmax, args, w, row, lane_now());
  }

  template <typename Use>
  __device__ __forceinline__ void for_words(const RowTensor& t, int64_t dim, const Use& use) {
    const int lane = lane_now(), key = lane / 4, column = 8 * (lane % 4);
    const T* g_from = tile::row_of_tensor<T>(t, w.batch, w.kv_begin + key, w.kv_head) + column;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const bool seen = key + 8 * n >= w.see_first && key + 8 * n < w.see_last;
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        use(n, c, load_words(g_from + 8 * n * t.row_stride + 32 * c, seen && column + 32 * c < dim));
    }
  }

  __device__ __forceinline__ void load_keys() {
    for_words(args.params.k, args.params.head_dim,
              [&](int n, int c, const uint4& words) { r_k[n][c] = words; });
  }

  // All are asked for before the first is transposed.
  __device__ __forceinline__ void load_values() {
    for_words(args.params.v, args.params.head_dim_v, [&](int n, int c, const uint4& words) {
      r_v[n][4 * c] = words.x;
      r_v[n][4 * c + 1] = words.y;
      r_v[n][4 * c + 2] = words.z;
      r_v[n][4 * c + 3] = words.w;
    });
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4 * kChunks; ++i) r_v[n][i] = ptx::transpose_8x8(r_v[n][i]);
    }
  }

  __device__ __forceinline__ void multiply_values(float (&r_o)[C::kDim / 2],
                                                  const float (&r_p)[C::kKeys / 2]) {
#pragma unroll
    for (int step = 0; step < C::kKeys / 16; ++step) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = ptx::pack<T>(r_p[8 * step + 2 * i], r_p[8 * step + 2 * i + 1]);
#pragma unroll
      for (int i = 0; i < 4 * kChunks; ++i)
        ptx::mma_16x8x16<T>(&r_o[4 * i], a, r_v[2 * step][i], r_v[2 * step + 1][i]);
    }
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    short_by_warps(const __grid_constant__ ShortArgs args) {
  __shared__ ShortWork s_work[C::kWarps];
  ptx::grid_release();
  if (!args.pieces.uniform) ptx::grid_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int index = static_cast<int>(blockIdx.x) * C::kWarps + warp;
  if (index >= args.pieces.total) return;
  ShortWork& work = s_work[warp];
  if (lane == 0) work.begin(args, index);
  bool more = lane == 0 && work.next(args);
  ptx::grid_wait();
#pragma unroll 1
  for (;;) {
    __syncwarp();
    if (!__shfl_sync(~0u, more, 0)) return;
    WarpPiece<C>{args, work}.run();
    __syncwarp();
    more = lane == 0 && work.next(args);
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SHORT_WARP_H_
