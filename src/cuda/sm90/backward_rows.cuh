// What goes before and after the backward kernel proper, a block for each query tile of each head: before,
// D = rowsum(dO o O) - dlse and zeros for the sums of dQ; after, the sums out of their fragment order into
// dq.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_ROWS_H_
#define TILEWISE_CUDA_SM90_BACKWARD_ROWS_H_

#include "cuda/sm90/backward_args.cuh"
#include "cuda/sm90/backward_wide_config.cuh"
#include "cuda/support/element.cuh"
#include "cuda/tile/store.cuh"

namespace tilewise::sm90 {

constexpr int kRowThreads = 256;

// Calls visit(sequence, batch, head, tile) for the block's tiles. A packed sequence that is longer than the
// plan's bound has further ones.
template <typename C, typename Visit>
__device__ __forceinline__ void for_query_tiles(const BackwardArgs& args, const Visit& visit) {
  const BackwardParams& p = args.params;
  const auto heads = static_cast<uint32_t>(p.heads_q);
  int tile = static_cast<int>(blockIdx.x % args.tiles_m);
  const uint32_t rest = blockIdx.x / args.tiles_m;
  const int head = static_cast<int>(rest % heads), batch = static_cast<int>(rest / heads);
  const Sequence s = sequence_of(p, batch);
  for (; static_cast<int64_t>(tile) * C::kTileM < s.rows_q; tile += args.tiles_m) visit(s, batch, head, tile);
}

// Eight products of one row, from column `column`; in fp32.
template <typename T>
__device__ __forceinline__ float eight_products(const BackwardParams& p, int64_t at_dout, int64_t at_o,
                                                int column, bool wide) {
  float sum = 0.0f;
  const auto* g_dout = static_cast<const T*>(p.dout.data) + at_dout + column;
  if (wide && column + 8 <= p.head_dim_v) {
    const uint4 a = *reinterpret_cast<const uint4*>(g_dout);
    const uint4 b = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.o.data) + at_o + column);
    const auto* x = reinterpret_cast<const T*>(&a);
    const auto* y = reinterpret_cast<const T*>(&b);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
    return sum;
  }
  for (int i = 0; i < 8 && column + i < p.head_dim_v; ++i)
    sum += static_cast<float>(g_dout[i]) * cuda::load(p.o.data, p.o.dtype, at_o + column + i);
  return sum;
}

template <typename C>
__global__ void __launch_bounds__(kRowThreads)
    backward_before(const __grid_constant__ BackwardArgs args, int wide) {
  using T = typename C::Element;
  constexpr int kLanes = C::kDimV > 128 ? 32 : C::kDimV > 64 ? 16 : 8;  // of a row
  const BackwardParams& p = args.params;
  for_query_tiles<C>(args, [&](const Sequence& s, int batch, int head, int tile) {
    const int64_t first = static_cast<int64_t>(tile) * C::kTileM;
    const int64_t scratch_row =
        head * args.scratch_rows.rows + args.scratch_rows.begin<C::kTileM>(p, batch, s.q_begin);
    for (int i = static_cast<int>(threadIdx.x) / kLanes; i < C::kTileM; i += kRowThreads / kLanes) {
      const int64_t row = first + i;
      const bool exists = row < s.len_q;
      float delta = 0.0f;
      if (exists && p.delta.data == nullptr)
        delta = eight_products<T>(p, p.dout.at(batch, s.q_begin + row, head),
                                  p.o.at(batch, s.q_begin + row, head), threadIdx.x % kLanes * 8, wide != 0);
#pragma unroll
      for (int bit = kLanes / 2; bit > 0; bit /= 2) delta += __shfl_xor_sync(~0u, delta, bit);
      if (threadIdx.x % kLanes != 0) continue;
      if (exists && p.delta.data) delta = p.delta.at(batch, s.q_begin + row, head);
      if (exists && p.dlse.data) delta -= p.dlse.at(batch, s.q_begin + row, head);
      args.g_delta[scratch_row + row] = delta;
    }
    if (args.g_dq == nullptr) return;
    if (args.g_turns && threadIdx.x < C::kBlocks)
      args.g_turns[(scratch_row + first) / C::kTileM * C::kBlocks + threadIdx.x] = 0;
    auto* g_sums = reinterpret_cast<float4*>(args.g_dq + (scratch_row + first) * C::kDim);
    for (int i = static_cast<int>(threadIdx.x); i < C::kTileFloats / 4; i += kRowThreads)
      g_sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  });
}

template <typename C>
__global__ void __launch_bounds__(kRowThreads) backward_after(const __grid_constant__ BackwardArgs args) {
  using T = typename C::Element;
  const BackwardParams& p = args.params;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for_query_tiles<C>(args, [&](const Sequence& s, int batch, int head, int tile) {
    const int64_t first = static_cast<int64_t>(tile) * C::kTileM;
    const int64_t scratch_row =
        head * args.scratch_rows.rows + args.scratch_rows.begin<C::kTileM>(p, batch, s.q_begin);
#pragma unroll 1
    for (int panel = warp / 4; panel < C::kSumPanels; panel += kRowThreads / 128) {
      const int columns = panel + 1 < C::kSumPanels ? 64 : C::kLastColumns;
      const float* g_sums =
          args.g_dq + (scratch_row + first) * C::kDim + panel * C::kGroupFloats + warp % 4 * 16 * columns;
      float r_dq[32];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float4 part = {};
        if (8 * i < columns) part = *reinterpret_cast<const float4*>(g_sums + 128 * i + 4 * lane);
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
