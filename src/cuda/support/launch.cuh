// Launching kernels that need more shared memory than a kernel has unasked.
#ifndef TILEWISE_CUDA_SUPPORT_LAUNCH_CUH_
#define TILEWISE_CUDA_SUPPORT_LAUNCH_CUH_

#include <cuda_runtime.h>

namespace tilewise::cuda {

// Once a device: what prepare() does.
template <typename... Params>
cudaError_t allow_shared(void (*kernel)(Params...), size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

template <typename... Params, typename... Args>
cudaError_t launch_shared(void (*kernel)(Params...), int64_t blocks, int threads, size_t bytes,
                          cudaStream_t stream, const Args&... args) {
  const auto go = [&] {
    kernel<<<static_cast<unsigned>(blocks), threads, bytes, stream>>>(args...);
    return cudaGetLastError();
  };
  const cudaError_t error = go();
  // More than it has unasked: this device was never prepared.
  return error == cudaErrorInvalidValue && allow_shared(kernel, bytes) == cudaSuccess ? go() : error;
}

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SUPPORT_LAUNCH_CUH_
