#include "core/text.h"
#include "cuda/device.h"
#include "cuda/runtime.h"
#include "cuda/support/append.h"
#include "cuda/support/merge.h"

namespace tilewise::cuda {
namespace {

template <typename Call>
Status on(int device, const char* what, Call&& call) {
  const DeviceScope scope(device);
  return scope.ok() ? status_of(call(), what) : scope.status();
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

template <typename Call>
Status launch_on(int device, void* stream, const char* what, Call&& call) {
  const DeviceScope scope(device);
  if (!scope.ok()) return scope.status();
  if (Status s = check_stream(device, stream_of(stream)); !s.ok()) return s;
  return status_of(call(), what);
}

}  // namespace

Status allocate(int device, int64_t bytes, void** data) {
  *data = nullptr;
  const Status status = on(device, "allocating device memory",
                           [&] { return cudaMalloc(data, static_cast<size_t>(bytes > 0 ? bytes : 1)); });
  if (status.code() == Code::out_of_memory)
    return {Code::out_of_memory,
            cat("the device has no ", bytes_text(static_cast<double>(bytes)), " of memory left")};
  return status;
}

void release(int device, void* data) {
  if (data) (void)on(device, "releasing device memory", [&] { return cudaFree(data); });
}

Status copy(int device, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return {};
  return on(device, "copying between host and device", [&] {
    const cudaError_t error = cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault);
    // From pageable memory it returns once that has been staged; streams that do not wait for this one would
    // then race with what is still on its way.
    return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
  });
}

Status fill(int device, void* data, int byte, int64_t bytes) {
  if (bytes == 0) return {};
  if (Status s = on(device, "filling device memory",
                    [&] { return cudaMemset(data, byte, static_cast<size_t>(bytes)); });
      !s.ok())
    return s;
  return synchronize(device);
}

Expected<int64_t> free_bytes(int device) {
  size_t free = 0, all = 0;
  if (Status s = on(device, "asking for free memory", [&] { return cudaMemGetInfo(&free, &all); }); !s.ok())
    return s;
  return static_cast<int64_t>(free);
}

Status allocate_in(int device, void* stream, int64_t bytes, void** data) {
  *data = nullptr;
  return on(device, "allocating device memory",
            [&] { return cudaMallocAsync(data, static_cast<size_t>(bytes), stream_of(stream)); });
}

Status release_in(int device, void* stream, void* data) {
  return on(device, "releasing device memory", [&] { return cudaFreeAsync(data, stream_of(stream)); });
}

Status zero_in(int device, void* stream, void* data, int64_t bytes) {
  return on(device, "zeroing device memory",
            [&] { return cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream_of(stream)); });
}

Status state_of(int device, void* stream, StreamState* state) {
  return launch_on(device, stream, "asking for the state of a stream", [&] {
    unsigned long long id = 0;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream_of(stream), &capturing);
    const bool none = capturing == cudaStreamCaptureStatusNone;
    if (error == cudaSuccess && none)
      error = cudaStreamGetId(stream_of(stream), &id);  // refused while it captures
    *state = {id, !none};
    return error;
  });
}

Status merge(int device, void* stream, const MergeParts& parts) {
  return launch_on(device, stream, "merging", [&] { return launch_merge(parts, stream_of(stream)); });
}

Status append(int device, void* stream, const AppendParams& rows) {
  return launch_on(device, stream, "appending", [&] { return launch_append(rows, stream_of(stream)); });
}

Status synchronize(int device) {
  return on(device, "a kernel failed on the device", [] { return cudaDeviceSynchronize(); });
}

}  // namespace tilewise::cuda
