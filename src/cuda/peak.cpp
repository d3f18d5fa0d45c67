#include <algorithm>

#include "cuda/device.h"
#include "cuda/runtime.h"
#include "cuda/support/peak.h"

namespace tilewise::cuda {
namespace {

constexpr int kRounds = 4000;                     // some milliseconds
constexpr int64_t kReadBytes = int64_t{2} << 30;  // far more than any L2
constexpr int64_t kLeastBytes = int64_t{64} << 20;

}  // namespace

struct Peak::State {
  int device = 0, capability = 0, multiprocessors = 0;
  int64_t bytes = 0;
  void* data = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, end = nullptr;
  ~State() {
    const DeviceScope scope(device);
    if (start) cudaEventDestroy(start);
    if (end) cudaEventDestroy(end);
    if (stream) cudaStreamDestroy(stream);
    if (data) cudaFree(data);
  }
  template <typename Launch>
  Expected<double> seconds(Launch&& launch) {
    const DeviceScope scope(device);
    if (!scope.ok()) return scope.status();
    cudaError_t error = cudaEventRecord(start, stream);
    if (error == cudaSuccess) error = launch();
    if (error == cudaSuccess) error = cudaEventRecord(end, stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(end);
    float ms = 0;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, start, end);
    if (Status s = status_of(error, "measuring a peak"); !s.ok()) return s;
    return 1e-3 * static_cast<double>(ms);
  }
};

Peak::Peak(std::unique_ptr<State> state) : state_(std::move(state)) {}
Peak::Peak(Peak&&) noexcept = default;
Peak& Peak::operator=(Peak&&) noexcept = default;
Peak::~Peak() = default;

Expected<Peak> Peak::make(int device) {
  const auto info = query(device);
  if (!info) return info.status();
  const DeviceScope scope(device);
  if (!scope.ok()) return scope.status();
  auto state = std::make_unique<State>();
  state->device = device;
  state->capability = static_cast<int>(info->isa);
  state->multiprocessors = info->cores;
  state->bytes = std::max(kLeastBytes, std::min(kReadBytes, info->memory_bytes / 4)) & ~int64_t{4095};
  const auto check = [](cudaError_t error) { return status_of(error, "preparing to measure a peak"); };
  if (Status s = check(cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking)); !s.ok()) return s;
  if (Status s = check(cudaEventCreate(&state->start)); !s.ok()) return s;
  if (Status s = check(cudaEventCreate(&state->end)); !s.ok()) return s;
  if (Status s = check(cudaMalloc(&state->data, static_cast<size_t>(state->bytes))); !s.ok()) return s;
  if (Status s = check(cudaMemset(state->data, 0x3c, static_cast<size_t>(state->bytes))); !s.ok()) return s;
  return Peak(std::move(state));
}

Expected<double> Peak::matrix_flops() {
  State& s = *state_;
  const auto seconds = s.seconds([&] {
    return launch_matrix_burst(s.capability, s.multiprocessors, kRounds, static_cast<float*>(s.data),
                               s.stream);
  });
  if (!seconds) return seconds;
  return matrix_burst_flops(s.capability, s.multiprocessors, kRounds) / *seconds;
}

Expected<double> Peak::read_bytes() {
  State& s = *state_;
  const auto seconds = s.seconds([&] {
    return launch_read_burst(s.multiprocessors, s.data, s.bytes, static_cast<float*>(s.data), s.stream);
  });
  if (!seconds) return seconds;
  return static_cast<double>(s.bytes) / *seconds;
}

}  // namespace tilewise::cuda
