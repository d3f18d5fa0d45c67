// One element of a tensor whose storage type is known at run time, as fp32.
#ifndef TILEWISE_CUDA_SUPPORT_ELEMENT_CUH_
#define TILEWISE_CUDA_SUPPORT_ELEMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "tilewise/dtype.h"

namespace tilewise::cuda {

// Every tensor but a cache is floating-point: what the other types cost in code stands where a cache is.
__device__ __forceinline__ float load(const void* data, DType dtype, int64_t at) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[at];
  if (dtype == DType::f16) return __half2float(static_cast<const __half*>(data)[at]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

__device__ __forceinline__ void store(void* data, DType dtype, int64_t at, float value) {
  if (dtype == DType::f32) static_cast<float*>(data)[at] = value;
  if (dtype == DType::f16) static_cast<__half*>(data)[at] = __float2half_rn(value);
  if (dtype == DType::bf16) static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
}

// A bias of 7 against 127: the bits in their places, times 2^120, exactly; subnormal ones too. Below 8.9 no
// instruction reads the type, and what cuda_fp8.h has instead is ten times as long.
__device__ __forceinline__ float float_of_e4m3(uint8_t bits) {
  const uint32_t magnitude = bits & 0x7fu;
  const float value = __uint_as_float((bits & 0x80u) << 24 | magnitude << 20) * 0x1p120f;
  return magnitude == 0x7fu ? __int_as_float(0x7fc00000) : value;
}

// Of a cache, whose elements may be quantised.
__device__ __forceinline__ float load_stored(const void* data, DType dtype, int64_t at) {
  if (dtype == DType::i8) return static_cast<float>(static_cast<const int8_t*>(data)[at]);
  if (dtype == DType::f8e4m3) return float_of_e4m3(static_cast<const uint8_t*>(data)[at]);
  return load(data, dtype, at);
}

__device__ __forceinline__ void store_quantized(void* data, DType dtype, int64_t at, float value) {
  if (dtype == DType::i8)  // held within -127 to 127; NaN becomes 0
    static_cast<int8_t*>(data)[at] =
        static_cast<int8_t>(value != value ? 0 : __float2int_rn(fminf(fmaxf(value, -127.0f), 127.0f)));
  else
    static_cast<__nv_fp8_storage_t*>(data)[at] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SUPPORT_ELEMENT_CUH_
