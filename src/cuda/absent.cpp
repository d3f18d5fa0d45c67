// The room where it was built without CUDA: no rows, and a sentence for everything else.
#include "cuda/kernels.h"
#include "cuda/runtime.h"

namespace tilewise {

std::span<const Kernel> cuda_kernels() { return {}; }

namespace cuda {
namespace {

Status absent() {
  return {
      Code::unsupported,
      "this build has no CUDA code; accepted: the CPU, or a build with TILEWISE_CUDA=ON (nvcc 12.4 to 13)"};
}

}  // namespace

struct GraphTimer::State {};
struct Peak::State {};

bool built() { return false; }
std::string toolkit_text() { return "built without CUDA"; }
int driver_needed() { return 0; }
int driver_found() { return 0; }
std::string version_text(int) { return {}; }
Expected<int> device_count() { return absent(); }
Expected<tilewise_device_info> query(int) { return absent(); }
Status allocate(int, int64_t, void**) { return absent(); }
void release(int, void*) {}
Status copy(int, void*, const void*, int64_t) { return absent(); }
Status fill(int, void*, int, int64_t) { return absent(); }
Expected<int64_t> free_bytes(int) { return absent(); }
Status allocate_in(int, void*, int64_t, void**) { return absent(); }
Status release_in(int, void*, void*) { return absent(); }
Status zero_in(int, void*, void*, int64_t) { return absent(); }
Status merge(int, void*, const MergeParts&) { return absent(); }
Status append(int, void*, const AppendParams&) { return absent(); }
Status state_of(int, void*, StreamState*) { return absent(); }
Status synchronize(int) { return absent(); }

Expected<GraphTimer> GraphTimer::capture(int, int, const Launch&) { return absent(); }
GraphTimer::GraphTimer(std::unique_ptr<State> state) : state_(std::move(state)) {}
GraphTimer::GraphTimer(GraphTimer&&) noexcept = default;
GraphTimer& GraphTimer::operator=(GraphTimer&&) noexcept = default;
GraphTimer::~GraphTimer() = default;
Expected<double> GraphTimer::milliseconds() { return absent(); }
int GraphTimer::calls() const { return 0; }

Expected<Peak> Peak::make(int) { return absent(); }
Peak::Peak(std::unique_ptr<State> state) : state_(std::move(state)) {}
Peak::Peak(Peak&&) noexcept = default;
Peak& Peak::operator=(Peak&&) noexcept = default;
Peak::~Peak() = default;
Expected<double> Peak::matrix_flops() { return absent(); }
Expected<double> Peak::read_bytes() { return absent(); }

}  // namespace cuda
}  // namespace tilewise
