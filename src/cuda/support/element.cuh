// One element of a tensor whose storage type is known at run time, as fp32.
#ifndef TILEWISE_CUDA_SUPPORT_ELEMENT_CUH_
#define TILEWISE_CUDA_SUPPORT_ELEMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tilewise/dtype.h"

namespace tilewise::cuda {

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

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SUPPORT_ELEMENT_CUH_
