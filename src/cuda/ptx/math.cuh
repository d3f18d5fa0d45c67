// Single instructions of the special-function and conversion units.
#ifndef TILEWISE_CUDA_PTX_MATH_H_
#define TILEWISE_CUDA_PTX_MATH_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tilewise::ptx {

// exp2f would add scaling for denormals.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two rounded values in one word, `low` in the lower half.
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

template <>
__device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Two e4m3 in the lower half of `pair` to fp16, exactly: compute capability 8.9 and up.
__device__ __forceinline__ uint32_t halves_of_e4m3(uint32_t pair) {
  uint32_t word;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(word) : "h"(static_cast<uint16_t>(pair)));
  return word;
}

// The two values of a word, of fp16 or bf16.
__device__ __forceinline__ float2 unpack(uint32_t word, bool half) {
  if (!half) return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_MATH_H_
