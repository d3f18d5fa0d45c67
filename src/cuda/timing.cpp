#include "cuda/device.h"
#include "cuda/runtime.h"

namespace tilewise::cuda {

struct GraphTimer::State {
  int device = 0, calls = 1;
  cudaStream_t stream = nullptr;
  cudaGraphExec_t graph = nullptr;
  cudaEvent_t start = nullptr, end = nullptr;
  ~State() {
    const DeviceScope scope(device);
    if (graph) cudaGraphExecDestroy(graph);
    if (start) cudaEventDestroy(start);
    if (end) cudaEventDestroy(end);
    if (stream) cudaStreamDestroy(stream);
  }
};

GraphTimer::GraphTimer(std::unique_ptr<State> state) : state_(std::move(state)) {}
GraphTimer::GraphTimer(GraphTimer&&) noexcept = default;
GraphTimer& GraphTimer::operator=(GraphTimer&&) noexcept = default;
GraphTimer::~GraphTimer() = default;
int GraphTimer::calls() const { return state_->calls; }

Expected<GraphTimer> GraphTimer::capture(int device, int calls, const Launch& launch) {
  const DeviceScope scope(device);
  if (!scope.ok()) return scope.status();
  auto state = std::make_unique<State>();
  state->device = device;
  state->calls = calls;
  const auto check = [](cudaError_t error) { return status_of(error, "capturing a graph"); };
  if (Status s = check(cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking)); !s.ok()) return s;
  if (Status s = check(cudaEventCreate(&state->start)); !s.ok()) return s;
  if (Status s = check(cudaEventCreate(&state->end)); !s.ok()) return s;
  if (Status s = check(cudaStreamBeginCapture(state->stream, cudaStreamCaptureModeThreadLocal)); !s.ok())
    return s;
  Status launched;
  for (int i = 0; i < calls && launched.ok(); ++i) launched = launch(state->stream);
  cudaGraph_t graph = nullptr;
  const Status captured = check(cudaStreamEndCapture(state->stream, &graph));
  Status made = launched.ok() ? captured : launched;
  if (made.ok()) made = check(cudaGraphInstantiate(&state->graph, graph, 0));
  if (graph) cudaGraphDestroy(graph);
  if (!made.ok()) return made;
  return GraphTimer(std::move(state));
}

Expected<double> GraphTimer::milliseconds() {
  State& s = *state_;
  const DeviceScope scope(s.device);
  if (!scope.ok()) return scope.status();
  cudaError_t error = cudaEventRecord(s.start, s.stream);
  if (error == cudaSuccess) error = cudaGraphLaunch(s.graph, s.stream);
  if (error == cudaSuccess) error = cudaEventRecord(s.end, s.stream);
  if (error == cudaSuccess) error = cudaEventSynchronize(s.end);
  float ms = 0;
  if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, s.start, s.end);
  if (Status status = status_of(error, "replaying a graph"); !status.ok()) return status;
  return static_cast<double>(ms) / s.calls;
}

}  // namespace tilewise::cuda
