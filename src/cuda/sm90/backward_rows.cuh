// What goes before and after the backward kernel proper, a block for each query tile of each head: before,
// D = rowsum(dO o O) - dlse and zeros for the sums of dQ; after, the sums out of their fragment order into
// dq. Both live by the rate of memory: every byte that a thread reads is on its way before it uses the first.
//
// The three kernels overlap at their ends (ptx/grid.cuh). Each lets the next begin only after its own wait,
// so that what came before the call is done before any of the three begins.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_ROWS_H_
#define TILEWISE_CUDA_SM90_BACKWARD_ROWS_H_

#include "cuda/ptx/grid.cuh"
#include "cuda/sm90/backward_args.cuh"
#include "cuda/sm90/backward_wide_config.cuh"
#include "cuda/support/element.cuh"
#include "cuda/tile/store.cuh"

namespace tilewise::sm90 {

constexpr int kRowThreads = 256;

// Calls visit(sequence, batch, head, tile) for the block's tiles. A packed sequence that is longer than the
// plan's bound has further ones. From the last head to the first: the kernel proper goes from the first to
// the last, so that each finds in the L2 what the one before it touched last.
template <typename C, typename Visit>
__device__ __forceinline__ void for_query_tiles(const BackwardArgs& args, const Visit& visit) {
  const BackwardParams& p = args.params;
  const auto heads = static_cast<uint32_t>(p.heads_q);
  const uint32_t index = gridDim.x - 1 - blockIdx.x;
  int tile = static_cast<int>(index % args.tiles_m);
  const uint32_t rest = index / args.tiles_m;
  const int head = static_cast<int>(rest % heads), batch = static_cast<int>(rest / heads);
  const Sequence s = sequence_of(p, batch);
  for (; static_cast<int64_t>(tile) * C::kTileM < s.rows_q; tile += args.tiles_m) visit(s, batch, head, tile);
}

template <typename T>
__device__ __forceinline__ float eight_products(const uint4& a, const uint4& b) {
  const auto* x = reinterpret_cast<const T*>(&a);
  const auto* y = reinterpret_cast<const T*>(&b);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
  return sum;
}

// The same from column `column` of rows of any layout and type. wide: whole pieces can be read at once.
template <typename T>
__device__ __forceinline__ float eight_products(const BackwardParams& p, int64_t at_dout, int64_t at_o,
                                                int column, bool wide) {
  const auto* g_dout = static_cast<const T*>(p.dout.data) + at_dout + column;
  if (wide && column + 8 <= p.head_dim_v)
    return eight_products<T>(
        *reinterpret_cast<const uint4*>(g_dout),
        *reinterpret_cast<const uint4*>(static_cast<const T*>(p.o.data) + at_o + column));
  float sum = 0.0f;
  for (int i = 0; i < 8 && column + i < p.head_dim_v; ++i)
    sum += static_cast<float>(g_dout[i]) * cuda::load(p.o.data, p.o.dtype, at_o + column + i);
  return sum;
}

// D of a query tile. wide: pieces of 16 bytes of o and dout can be read at once.
template <typename C>
struct DeltaRows {
  using T = typename C::Element;
  static constexpr int kLanes = C::kDimV > 128 ? 32 : C::kDimV > 64 ? 16 : 8;    // of a row
  static constexpr int kStep = kRowThreads / kLanes, kRows = C::kTileM / kStep;  // of a thread
  static constexpr int kAtOnce = 4;
  static_assert(kRows % kAtOnce == 0);

  const BackwardArgs& args;
  const Sequence& s;
  const int batch, head, first;  // row of the tile
  const int64_t scratch_row;

  __device__ __forceinline__ int row(int i) const {
    return first + static_cast<int>(threadIdx.x) / kLanes + kStep * i;
  }
  __device__ __forceinline__ int64_t at(const RowTensor& t, int i) const {
    return t.at(batch, s.q_begin + row(i), head);
  }

  // Zeroes go out while the rows come in.
  template <typename Zero>
  __device__ __forceinline__ void make(bool wide, const Zero& zero) const {
    const BackwardParams& p = args.params;
    const int column = static_cast<int>(threadIdx.x) % kLanes * 8;
    const auto* g_dout = static_cast<const T*>(p.dout.data) + at(p.dout, 0) + column;
    const auto* g_o = static_cast<const T*>(p.o.data) + at(p.o, 0) + column;
#pragma unroll
    for (int from = 0; from < kRows; from += kAtOnce) {
      float sums[kAtOnce] = {};
      if (wide && p.head_dim_v % 8 == 0) {
        uint4 r_dout[kAtOnce] = {}, r_o[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (row(from + i) >= s.len_q || column >= p.head_dim_v) continue;
          const int64_t down = kStep * (from + i);
          r_dout[i] = *reinterpret_cast<const uint4*>(g_dout + down * p.dout.row_stride);
          r_o[i] = __ldcs(reinterpret_cast<const uint4*>(g_o + down * p.o.row_stride));  // its last use
        }
        if (from == 0) zero();
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) sums[i] = eight_products<T>(r_dout[i], r_o[i]);
      } else {
        if (from == 0) zero();
#pragma unroll 1
        for (int i = 0; i < kAtOnce && p.delta.data == nullptr; ++i)
          if (row(from + i) < s.len_q)
            sums[i] = eight_products<T>(p, at(p.dout, from + i), at(p.o, from + i), column, wide);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int bit = kLanes / 2; bit > 0; bit /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], bit);
        if (column == 0) put(row(from + i), sums[i]);
      }
    }
  }

 private:
  __device__ __forceinline__ void put(int row, float delta) const {
    const BackwardParams& p = args.params;
    const bool exists = row < s.len_q;
    if (exists && p.delta.data) delta = p.delta.at(batch, s.q_begin + row, head);
    if (exists && p.dlse.data) delta -= p.dlse.at(batch, s.q_begin + row, head);
    args.g_delta[scratch_row + row] = delta;
  }
};

template <typename C>
__global__ void __launch_bounds__(kRowThreads)
    backward_before(const __grid_constant__ BackwardArgs args, int wide) {
  ptx::grid_wait();
  ptx::grid_release();
  for_query_tiles<C>(args, [&](const Sequence& s, int batch, int head, int tile) {
    const int first = tile * C::kTileM;
    const int64_t scratch_row =
        head * args.scratch_rows.rows + args.scratch_rows.begin<C::kTileM>(args.params, batch, s.q_begin);
    DeltaRows<C>{args, s, batch, head, first, scratch_row}.make(wide != 0, [&] {
      if (args.g_turns) {  // the first to add stores
        if (threadIdx.x < C::kBlocks)
          args.g_turns[(scratch_row + first) / C::kTileM * C::kBlocks + threadIdx.x] = 0;
      } else if (args.g_dq) {
        auto* g_sums = reinterpret_cast<float4*>(args.g_dq + (scratch_row + first) * C::kDim);
#pragma unroll
        for (int i = 0; i < C::kTileFloats / 4; i += kRowThreads)
          g_sums[i + threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
    });
  });
}

template <typename C>
__global__ void __launch_bounds__(kRowThreads) backward_after(const __grid_constant__ BackwardArgs args) {
  using T = typename C::Element;
  ptx::grid_wait();
  ptx::grid_release();
  const BackwardParams& p = args.params;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for_query_tiles<C>(args, [&](const Sequence& s, int batch, int head, int tile) {
    const int64_t first = static_cast<int64_t>(tile) * C::kTileM;
    const int64_t scratch_row =
        head * args.scratch_rows.rows + args.scratch_rows.begin<C::kTileM>(p, batch, s.q_begin);
    const bool summed =
        args.g_turns == nullptr || args.g_turns[(scratch_row + first) / C::kTileM * C::kBlocks] != 0;
#pragma unroll 1
    for (int panel = warp / 4; panel < C::kSumPanels; panel += kRowThreads / 128) {
      const int columns = panel + 1 < C::kSumPanels ? 64 : C::kLastColumns;
      const float* g_sums =
          args.g_dq + (scratch_row + first) * C::kDim + panel * C::kGroupFloats + warp % 4 * 16 * columns;
      float r_dq[32];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float4 part = {};
        // Their last use.
        if (summed && 8 * i < columns)
          part = __ldcs(reinterpret_cast<const float4*>(g_sums + 128 * i + 4 * lane));
        r_dq[4 * i] = part.x;
        r_dq[4 * i + 1] = part.y;
        r_dq[4 * i + 2] = part.z;
        r_dq[4 * i + 3] = part.w;
      }
      const int64_t row = first + (C::kByRows ? 64 * panel : 0) + 16 * (warp % 4) + lane / 4;
      const int column = C::kByRows ? 0 : 64 * panel;
      const int dim = min(columns, static_cast<int>(p.head_dim) - column);
      const int limits[2] = {row < s.rows_q ? dim : 0, row + 8 < s.rows_q ? dim : 0};
      const int64_t at = p.dq.at(batch, s.q_begin + row, head) + column;
      tile::store_gradient<T>(r_dq, p.scale, p.dq, at, args.wide_dq, p.accumulate, limits, lane);
    }
  });
}

// A head's dsink = -sum e^(sink - lse) D, a block each; in double, threads by rows, then a tree.
template <typename C>
__global__ void __launch_bounds__(kRowThreads) backward_sinks(const __grid_constant__ BackwardArgs args) {
  __shared__ double s_sum[kRowThreads];
  const BackwardParams& p = args.params;
  const auto head = static_cast<int64_t>(blockIdx.x);
  const float sink = p.sinks[head * p.sinks_stride];
  double sum = 0.0;
  for (int64_t batch = 0; batch < p.batch && sink != kNegativeInfinity; ++batch) {
    const Sequence s = sequence_of(p, batch);
    const float* g_delta = args.g_delta + head * args.scratch_rows.rows +
                           args.scratch_rows.begin<C::kTileM>(p, batch, s.q_begin);
    for (int64_t i = threadIdx.x; i < s.len_q; i += kRowThreads) {
      const float lse = p.lse.at(batch, s.q_begin + i, head);
      if (lse == kNegativeInfinity) continue;
      sum -= exp(static_cast<double>(sink) - static_cast<double>(lse)) * static_cast<double>(g_delta[i]);
    }
  }
  s_sum[threadIdx.x] = sum;
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) s_sum[threadIdx.x] += s_sum[threadIdx.x + half];
  }
  if (threadIdx.x == 0) p.dsinks[head * p.dsinks_stride] = static_cast<float>(s_sum[0]);
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_ROWS_H_
