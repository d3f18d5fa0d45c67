// fp32 rows in two fp16 numbers each, in scratch: x = (hi + lo / 2^11) * a power of two that the row shares.
// A kernel of its own writes them once a call, so that what multiplies them only copies. For the backward lo
// is not scaled, so that one accumulator takes all products, and what a row cannot hold shows by itself
// (Low::plain).
//
// Roles. 8 (of 64 columns) or 16 lanes take a row, eight numbers each; the row's largest finite magnitude
// goes to [2^14, 2^15). Columns past the tensor's are 0. What is not finite stays what it is.
#ifndef TILEWISE_CUDA_SM80_FORWARD_F32_PARTS_H_
#define TILEWISE_CUDA_SM80_FORWARD_F32_PARTS_H_

#include "core/params.h"
#include "cuda/ptx/math.cuh"

namespace tilewise::sm80 {

constexpr float kLowUnit = 1.0f / 2048, kLowScale = 2048;
constexpr int kScaledExponent = 14;  // of a row's largest number
constexpr int kPartsThreads = 256;

// Of a row: scaled numbers times `unit` are the given ones, 0 where all are 0; `least`: of the largest of
// each eight neighbours, the smallest that is not 0.
struct RowScale {
  float unit, least;
};

// The backward's parts are hi + lo, and of a row whose numbers are too far apart for that the unit is NaN:
// what it is multiplied into is not finite, and is made again in plain fp32.
enum class Low { scaled, plain };
constexpr float kPlainRange = 1.0f / 32;  // of scaled numbers: lo is rounded to 2^-25, 2^-20 of these

// Numbers so much smaller than what they are added to have lost bits (2^29: none yet).
__device__ __forceinline__ bool is_wild(RowScale row, float unit) {
  constexpr float kRange = 1.0f / 4096;  // 2^14 of the scaled numbers over 2^26
  return row.unit != 0.0f && row.least < unit * kRange;
}

// The parts of one tensor: rows of `dim` numbers, all heads of a sequence's row apart.
struct Parts {
  __half *hi = nullptr, *lo = nullptr;  // [head][row][dim]
  RowScale* scales = nullptr;           // [head][row]
  int64_t rows = 0;                     // of all sequences
  int64_t of_sequence = 0;              // rows; packed: 0, as batch_stride

  TILEWISE_HD int64_t at(int64_t b, int64_t row, int64_t head) const {
    return head * rows + b * of_sequence + row;
  }
};

struct PartsOf {
  RowTensor tensor;
  Parts parts;
  int64_t heads = 0;
  int32_t columns = 0, wide = 0;
};

template <int kTensors>
struct PartsArgs {
  PartsOf of[kTensors];         // q, k, v, then dO
  int64_t first[kTensors + 1];  // rows of all heads, one tensor after another
};

template <Low kLow = Low::scaled>
__device__ __forceinline__ void split_pair(uint32_t& hi, uint32_t& lo, float x, float y) {
  constexpr float kScale = kLow == Low::scaled ? kLowScale : 1.0f;
  hi = ptx::pack<__half>(x, y);
  const float2 rounded = ptx::unpack(hi, true);
  lo = ptx::pack<__half>((x - rounded.x) * kScale, (y - rounded.y) * kScale);
}

__device__ __forceinline__ float power_of_2(int exponent) { return __int_as_float((exponent + 127) << 23); }

template <int kDim, int kTensors, Low kLow>
__global__ void __launch_bounds__(kPartsThreads)
    make_parts(const __grid_constant__ PartsArgs<kTensors> args) {
  constexpr int kLanes = kDim / 8, kRows = kPartsThreads / kLanes;
  const int64_t index = int64_t{blockIdx.x} * kRows + threadIdx.x / kLanes;
  const int chunk = static_cast<int>(threadIdx.x) % kLanes;
  // Rows past the last one take part in the shuffles.
  const bool exists = index < args.first[kTensors];
  int tensor = 0;
#pragma unroll
  for (int i = 1; i < kTensors; ++i) tensor = index >= args.first[i] ? i : tensor;
  const PartsOf& of = args.of[tensor];
  const int64_t in_tensor = exists ? index - args.first[tensor] : 0;
  const int64_t head = in_tensor / of.parts.rows, row = in_tensor % of.parts.rows;
  const int64_t b = of.parts.of_sequence ? row / of.parts.of_sequence : 0;
  const int64_t in_sequence = row - b * of.parts.of_sequence;
  const int count = exists ? of.columns - 8 * chunk : 0;
  const float* g_from =
      static_cast<const float*>(of.tensor.data) + of.tensor.at(b, in_sequence, head) + 8 * chunk;
  float x[8];
  if (of.wide && count >= 8) {
    const float4 low = *reinterpret_cast<const float4*>(g_from);
    const float4 high = *reinterpret_cast<const float4*>(g_from + 4);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = j < count ? g_from[j] : 0.0f;
  }
  // Magnitudes of floats compare as their bits do.
  uint32_t most = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t bits = __float_as_uint(x[j]) & 0x7fffffffu;
    most = max(most, bits < 0x7f800000u ? bits : 0u);
  }
  uint32_t least = most ? most : 0x7f800000u;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    most = max(most, __shfl_xor_sync(~0u, most, step));
    least = min(least, __shfl_xor_sync(~0u, least, step));
  }
  if (!exists) return;
  // Denormals: as if they were 2^-112, so that no scale is infinite.
  const int exponent = max(static_cast<int>(most >> 23) - 127, -112);
  const float scale = power_of_2(kScaledExponent - exponent);
  uint32_t hi[4], lo[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) split_pair<kLow>(hi[j], lo[j], x[2 * j] * scale, x[2 * j + 1] * scale);
  const int64_t at = in_tensor * kDim + 8 * chunk;
  *reinterpret_cast<uint4*>(of.parts.hi + at) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
  *reinterpret_cast<uint4*>(of.parts.lo + at) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
  if (chunk != 0) return;
  RowScale scale_of{most ? power_of_2(exponent - kScaledExponent) : 0.0f, __uint_as_float(least)};
  if (kLow == Low::plain && scale_of.least < scale_of.unit * kPlainRange)
    scale_of.unit = __uint_as_float(0x7fffffffu);
  of.parts.scales[in_tensor] = scale_of;
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_F32_PARTS_H_
