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

// Compute capability 9.0, which has real code for itself of every kernel that may be launched early.
inline bool has_early_launch() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

// Launches a kernel that begins with ptx::grid_wait(): its blocks may start while the kernel before it ends.
template <typename... Params, typename... Args>
cudaError_t launch_early(void (*kernel)(Params...), int64_t blocks, int threads, size_t bytes,
                         cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = has_early_launch() ? 1 : 0;
  const auto go = [&] {
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Params(args)...);
    return error == cudaSuccess ? cudaGetLastError() : error;
  };
  const cudaError_t error = go();
  if (error != cudaErrorInvalidValue || bytes == 0) return error;
  // More than it has unasked: this device was never prepared.
  (void)cudaGetLastError();
  return allow_shared(kernel, bytes) == cudaSuccess ? go() : error;
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
