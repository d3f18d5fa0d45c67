#include "cuda/device.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/text.h"
#include "cuda/rules.h"
#include "cuda/runtime.h"

namespace tilewise::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : 0;
}

Status no_device_here(cudaError_t error) {
  cudaGetLastError();  // it is not to show up in a later call
  return no_device(error, driver_found(), driver_needed());
}

}  // namespace

Status no_device(cudaError_t error, int found, int needed) {
  if (found == 0)
    return {Code::device, cat("no NVIDIA driver was found; this build needs one for CUDA ",
                              version_text(needed), " or later, or the CPU (kind 0)")};
  if (found < needed)
    return {Code::device, cat("the NVIDIA driver supports CUDA ", version_text(found), "; this build needs ",
                              version_text(needed), " or later")};
  if (error == cudaSuccess || error == cudaErrorNoDevice)
    return {Code::device, "the NVIDIA driver is there, but shows no device (CUDA_VISIBLE_DEVICES?)"};
  return {Code::device, cat("the NVIDIA driver refused: ", cudaGetErrorString(error))};
}

Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  if (error == cudaErrorMemoryAllocation)
    return {Code::out_of_memory, cat(what, ": the device has no memory left")};
  return {Code::device, cat(what, ": ", cudaGetErrorString(error))};
}

Status check_stream(int device, cudaStream_t stream) {
#if CUDART_VERSION >= 12080
  static const int count = [] {
    int found = 0;
    return cudaGetDeviceCount(&found) == cudaSuccess ? found : 0;
  }();
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  if (count < 2 || handle <= reinterpret_cast<uintptr_t>(cudaStreamPerThread)) return {};
  // Asking for the device of a stream that captures would spoil the capture.
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  int of = device;
  cudaError_t error = cudaStreamIsCapturing(stream, &capturing);
  if (error == cudaSuccess && capturing == cudaStreamCaptureStatusNone)
    error = cudaStreamGetDevice(stream, &of);
  if (error != cudaSuccess) (void)cudaGetLastError();  // the launch says what is wrong
  if (of == device) return {};
  return {Code::invalid, cat("the stream is of CUDA device ", of, "; accepted: a stream of CUDA device ",
                             device, ", where the tensors are")};
#else
  (void)device, (void)stream;
  return {};
#endif
}

DeviceScope::DeviceScope(int index) : index_(index) {
  error_ = cudaGetDevice(&before_);
  if (error_ == cudaSuccess && before_ != index_) error_ = cudaSetDevice(index_);
}

DeviceScope::~DeviceScope() {
  if (error_ == cudaSuccess && before_ != index_) cudaSetDevice(before_);
}

Status DeviceScope::status() const { return ok() ? Status() : no_device_here(error_); }

bool built() { return true; }
std::string toolkit_text() { return cat("CUDA ", version_text(CUDART_VERSION)); }

// Within a major version a runtime works on every driver of that version.
int driver_needed() { return CUDART_VERSION / 1000 * 1000; }

int driver_found() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

std::string version_text(int version) { return cat(version / 1000, ".", version % 1000 / 10); }

Expected<int> device_count() {
  int count = 0;
  const cudaError_t error =
      driver_found() < driver_needed() ? cudaErrorInsufficientDriver : cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) return no_device_here(error);
  return count;
}

Expected<tilewise_device_info> query(int index) {
  const auto count = device_count();
  if (!count) return count.status();
  if (index < 0 || index >= *count)
    return Status(Code::device, cat("CUDA device index is ", index, "; accepted: 0 to ", *count - 1));
  const DeviceScope scope(index);
  if (!scope.ok()) return scope.status();
  cudaDeviceProp properties{};
  if (Status s = status_of(cudaGetDeviceProperties(&properties, index), "asking the device"); !s.ok())
    return s;
  size_t free = 0, total = 0;
  if (Status s = status_of(cudaMemGetInfo(&free, &total), "asking the device for its memory"); !s.ok())
    return s;
  tilewise_device_info d{};
  d.struct_bytes = sizeof d;
  d.kind = TILEWISE_CUDA;
  d.index = index;
  d.cores = properties.multiProcessorCount;
  d.isa = static_cast<uint64_t>(properties.major * 10 + properties.minor);
  d.l1_bytes = std::max<int64_t>(1, static_cast<int64_t>(properties.sharedMemPerMultiprocessor));
  d.l2_bytes = properties.l2CacheSize;
  d.memory_bytes = static_cast<int64_t>(free);
  d.core_gflops = 2e-6 * fma_lanes(d.isa) * attribute(cudaDevAttrClockRate, index);  // kHz
  // kHz, two transfers a clock.
  d.memory_gbps = 2e-6 * attribute(cudaDevAttrMemoryClockRate, index) *
                  (attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8.0);
  d.driver_needed = driver_needed();
  d.driver_found = driver_found();
  copy_text(properties.name, d.name, sizeof d.name);
  return d;
}

}  // namespace tilewise::cuda
