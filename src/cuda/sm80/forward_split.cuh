// A tile of fp32 numbers from global memory to two of fp16 in shared memory: x = (hi + lo / 2^11) * a power
// of two that the tile shares.
#ifndef TILEWISE_CUDA_SM80_FORWARD_SPLIT_H_
#define TILEWISE_CUDA_SM80_FORWARD_SPLIT_H_

#include "cuda/ptx/math.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm80 {

constexpr float kLowUnit = 1.0f / 2048, kLowScale = 2048;
constexpr int kScaledExponent = 14;  // of a tile's largest number

// The exponent of the largest finite number. 0 and denormals: as if it were 2^-112, so that no scale is
// infinite.
__device__ __forceinline__ int exponent_of(uint32_t largest) {
  return max(static_cast<int>(largest >> 23) - 127, -112);
}
__device__ __forceinline__ float power_of_2(int exponent) { return __int_as_float((exponent + 127) << 23); }
// To the scaled numbers and back.
__device__ __forceinline__ float scale_of(uint32_t largest) {
  return power_of_2(kScaledExponent - exponent_of(largest));
}
__device__ __forceinline__ float unscale(uint32_t largest) {
  return power_of_2(exponent_of(largest) - kScaledExponent);
}

__device__ __forceinline__ void split_pair(uint32_t& hi, uint32_t& lo, float x, float y) {
  hi = ptx::pack<__half>(x, y);
  const float2 rounded = ptx::unpack(hi, true);
  lo = ptx::pack<__half>((x - rounded.x) * kLowScale, (y - rounded.y) * kLowScale);
}

// A thread's share of a tile of 64 rows, by 128 threads: runs of eight numbers. Eight lanes take 64 columns.
template <int kColumns>
struct SplitTile {
  static constexpr int kRows = 64, kStep = 16, kPanels = kColumns / 64, kRuns = kRows / kStep * kPanels;
  using Tile = tile::SharedTile<kRows, kColumns>;

  float x[kRuns][8];

  // Rows [first, last) of the tile are read, their first `columns` numbers; the rest is 0.
  __device__ __forceinline__ void read(const float* g_tile, int64_t row_stride, int first, int last,
                                       int columns, bool wide) {
    const int thread = ptx::thread_afresh(), row = thread / 8, chunk = thread % 8;
    const float* g_from = g_tile + row * row_stride + 8 * chunk;
    const auto of_row = static_cast<uint32_t>(row - first), rows = static_cast<uint32_t>(last - first);
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int r = i / kPanels * kStep, panel = i % kPanels;
      const int count = of_row + r < rows ? columns - panel * 64 - 8 * chunk : 0;
      const float* g_run = g_from + panel * 64 + r * row_stride;
      if (wide && count >= 8) {
        const float4 low = *reinterpret_cast<const float4*>(g_run);
        const float4 high = *reinterpret_cast<const float4*>(g_run + 4);
        x[i][0] = low.x, x[i][1] = low.y, x[i][2] = low.z, x[i][3] = low.w;
        x[i][4] = high.x, x[i][5] = high.y, x[i][6] = high.z, x[i][7] = high.w;
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[i][j] = j < count ? g_run[j] : 0.0f;
      }
    }
  }

  // Magnitudes of floats compare as their bits do; what is not finite is left out: it stays what it is.
  __device__ __forceinline__ void tell_largest(uint32_t* s_largest) const {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) most = max(most, largest_of(i));
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0) atomicMax(s_largest, most);
  }

  // True where a run's numbers are too small beside the tile's largest one.
  __device__ __forceinline__ bool write(uint8_t* s_hi, uint8_t* s_lo, uint32_t largest) const {
    const float scale = scale_of(largest);
    const int thread = ptx::thread_afresh();
    const int place = Tile::chunk_offset(thread / 8, thread % 8);
    bool wild = false;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      uint32_t hi[4], lo[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) split_pair(hi[j], lo[j], x[i][2 * j] * scale, x[i][2 * j + 1] * scale);
      const int at = place + i / kPanels * kStep * 128 + i % kPanels * Tile::kPanelBytes;
      *reinterpret_cast<uint4*>(s_hi + at) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
      *reinterpret_cast<uint4*>(s_lo + at) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
      const uint32_t most = largest_of(i);
      constexpr uint32_t kRange = 26u << 23;
      wild = wild || (most != 0 && most + kRange < largest);
    }
    return wild;
  }

 private:
  __device__ __forceinline__ uint32_t largest_of(int i) const {
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t bits = __float_as_uint(x[i][j]) & 0x7fffffffu;
      most = max(most, bits < 0x7f800000u ? bits : 0u);
    }
    return most;
  }
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_SPLIT_H_
