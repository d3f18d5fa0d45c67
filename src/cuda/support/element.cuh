// One element of a tensor whose storage type is known at run time, as fp32.
#ifndef TILEWISE_CUDA_SUPPORT_ELEMENT_CUH_
#define TILEWISE_CUDA_SUPPORT_ELEMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "tilewise/dtype.h"

namespace tilewise::cuda {

__device__ __forceinline__ float load(const void* data, DType dtype, int64_t at) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[at];
  if (dtype == DType::f16) return __half2float(static_cast<const __half*>(data)[at]);
  if (dtype == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
  if (dtype == DType::i8) return static_cast<float>(static_cast<const int8_t*>(data)[at]);
  return __half2float(__nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(data)[at], __NV_E4M3));
}

__device__ __forceinline__ void store(void* data, DType dtype, int64_t at, float value) {
  if (dtype == DType::f32) static_cast<float*>(data)[at] = value;
  if (dtype == DType::f16) static_cast<__half*>(data)[at] = __float2half_rn(value);
  if (dtype == DType::bf16) static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
  if (dtype == DType::i8)  // held within -127 to 127; NaN becomes 0
    static_cast<int8_t*>(data)[at] =
        static_cast<int8_t>(value != value ? 0 : __float2int_rn(fminf(fmaxf(value, -127.0f), 127.0f)));
  if (dtype == DType::f8e4m3)
    static_cast<__nv_fp8_storage_t*>(data)[at] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SUPPORT_ELEMENT_CUH_
