// Which device a thread's calls go to, and CUDA's errors as sentences.
#ifndef TILEWISE_CUDA_DEVICE_H_
#define TILEWISE_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include "tilewise/status.h"

namespace tilewise::cuda {

Status status_of(cudaError_t error, const char* what);

// Why no device can be used, in the words of someone who has to mend it: the driver's version, 0 where there
// is none, the one that this build needs, and what CUDA said.
Status no_device(cudaError_t error, int found, int needed);

// A launch into a stream of another device would run there, on memory that is not its own, and take that
// device from the process. Toolkits before 12.8 cannot ask.
Status check_stream(int device, cudaStream_t stream);

// Makes a device current for this thread as long as it lives, and then the one before again.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  bool ok() const { return error_ == cudaSuccess; }
  Status status() const;

 private:
  int index_, before_ = -1;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_DEVICE_H_
