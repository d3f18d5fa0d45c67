// Backward calls that only a device has: the same bits under load, graphs, the one-call form, far tensors.
// Every row on every case is cuda_kernels_test.cpp's. Skipped with the reason where there is no device.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/text.h"
#include "tests/support/device_call.h"
#include "tests/support/kernel_run.h"

namespace tilewise {
namespace {

using namespace testing_support;

constexpr Direction kBackward = Direction::backward;

// CUDA's handle of the calling thread's own stream: work of two threads overlaps.
void* own_stream() { return reinterpret_cast<void*>(uintptr_t{2}); }

class CudaBackward : public CudaTest {
 protected:
  static Expected<Plan> plan_of(const DeviceCall& call, const char* kernel = nullptr) {
    Limits limits;
    limits.kernel = kernel;
    return plan(call.data.problem(kBackward), *cuda_device(), limits);
  }
};

// Other work on the device for as long as it lives, of changing size.
class Load {
 public:
  Load() : context_(std::move(*Context::create({}))) {  // the shared one's log is for one thread
    worker_ = std::thread([this] {
      DeviceCall large("name=l batch=2 heads_q=16 seqlen_q=500 head_dim=64 causal=bottom-right", DType::bf16);
      DeviceCall small("name=s heads_q=3 seqlen_q=70 head_dim=32", DType::bf16);
      running_ = true;
      for (int n = 0; !stop_; ++n) {
        DeviceCall& call = n % 3 ? large : small;
        Problem problem = call.data.problem(Direction::forward);
        if (!attention(context_, problem, call.tensors, own_stream())) failed_ = true;
        if (n % 16 == 0 && !cuda::synchronize(0)) failed_ = true;
      }
      (void)cuda::synchronize(0);
    });
    while (!running_) std::this_thread::yield();
  }
  ~Load() {
    stop_ = true;
    worker_.join();
    EXPECT_FALSE(failed_) << "the load did not run";
  }

 private:
  Context context_;
  std::atomic<bool> stop_{false}, running_{false}, failed_{false};
  std::thread worker_;
};

// At the head dimensions of every row, the planner's choice the longest.
TEST_F(CudaBackward, DeterministicBitsDoNotChangeUnderLoad) {
  constexpr int kRepeats = 100, kRepeatsOfOthers = 10;
  const Load load;
  const char* const lines[] = {
      "name=a heads_q=4 heads_kv=2 seqlen_q=300 seqlen_kv=420 causal=bottom-right sinks=random "
      "dlse=1",
      "name=b batch=2 heads_q=2 seqlen_q=257 window=100,20 softcap=9 alibi=h",
      "name=c batch=2 heads_q=2 seqlen_q=200 bias=11qk:random mask=b11k:random:0.7 dropout=0.2 sinks=random",
      "name=d heads_q=3 seqlen_q=500 seqlen_kv=700",
      "name=e heads_q=80 seqlen_q=140 causal=bottom-right"};  // more pieces than multiprocessors
  const struct {
    const char* dim;
    DType dtype;
  } rows[] = {{"head_dim=64", DType::bf16},  {"head_dim=96", DType::bf16},
              {"head_dim=128", DType::bf16}, {"head_dim=192 head_dim_v=128", DType::bf16},
              {"head_dim=256", DType::bf16}, {"head_dim=64", DType::f32},
              {"head_dim=128", DType::f32}};
  for (const char* line : lines) {
    for (const auto& [dim, dtype] : rows) {
      DeviceCall call(cat(line, " deterministic=1 ", dim), dtype, kBackward);
      const Expectation expected = call.expectation();
      const auto chosen = plan_of(call);
      ASSERT_TRUE(chosen.ok()) << chosen.status().message();
      for (const Kernel* kernel : kernels_of(kBackward, true)) {
        SCOPED_TRACE(cat(kernel->name, ": ", call.source.text));
        const auto made = plan_of(call, kernel->name);
        if (!made) continue;  // refused
        ASSERT_EQ(prepare(context(), *made).message(), "");
        auto workspace = Workspace::make(*made);
        ASSERT_TRUE(workspace.ok()) << workspace.status().message();
        std::vector<std::byte> bits;
        const int repeats = std::string_view(made->kernel) == chosen->kernel ? kRepeats : kRepeatsOfOthers;
        for (int repeat = 0; repeat < repeats; ++repeat) {
          ASSERT_EQ(backward(context(), *made, call.tensors, *workspace, own_stream()).message(), "");
          call.download("repeated");
          if (repeat == 0) {
            bits = output_bits(call.data, kBackward, expected);
            const Comparison worst = compare_outputs(call.data, kBackward, expected);
            EXPECT_TRUE(worst.passed()) << worst.text;
          }
          ASSERT_EQ(first_difference(call.data, kBackward, expected, bits), "") << "repeat " << repeat;
        }
      }
    }
  }
}

TEST_F(CudaBackward, OneCallFormOnDeviceTensors) {
  for (const char* line :
       {"name=a batch=2 heads_q=4 heads_kv=2 seqlen_q=70 seqlen_kv=90 head_dim=64 causal=bottom-right",
        "name=b heads_q=2 head_dim=32 cu_seqlens_q=0,40,90 cu_seqlens_kv=0,10,200 delta=1 dlse=1"}) {
    DeviceCall call(line, DType::bf16, kBackward);
    EXPECT_EQ(attention(context(), call.data.problem(kBackward), call.tensors).message(), "");
    call.check(line);
  }
}

// The lengths change on the device between replays: nothing of them was decided on the host.
TEST_F(CudaBackward, AGraphReplaysWithOtherLengths) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    DeviceCall call("name=a batch=2 heads_q=2 seqlen_q=70 seqlen_kv=130 head_dim=64 kv_lengths=130,20 dlse=1",
                    dtype, kBackward);
    const auto made = plan_of(call);
    ASSERT_TRUE(made.ok()) << made.status().message();
    ASSERT_EQ(prepare(context(), *made).message(), "");
    auto workspace = Workspace::make(*made);
    ASSERT_TRUE(workspace.ok());
    auto graph = cuda::GraphTimer::capture(
        0, 3, [&](void* stream) { return backward(context(), *made, call.tensors, *workspace, stream); });
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    for (const int32_t length : {20, 1, 0, 130}) {
      auto* lengths = static_cast<int32_t*>(call.data.kv_lengths.data());
      lengths[1] = length;
      call.data.set_forward_result(expect_forward(call.data.params(Direction::forward)));
      call.data.poison_outputs(kBackward, Poison::nan);
      ASSERT_EQ(call.mirror.upload().message(), "");
      const auto ms = graph->milliseconds();
      ASSERT_TRUE(ms.ok()) << ms.status().message();
      call.check(cat("length ", length));
    }
  }
}

// dk of the second sequence lies past 2^31 elements, and so do its keys.
TEST_F(CudaBackward, OffsetsAre64Bit) {
  constexpr int64_t kFar = (int64_t{1} << 31) + 64;
  DeviceCall call("name=a batch=2 heads_q=2 seqlen_q=20 seqlen_kv=30 head_dim=32", DType::bf16, kBackward);
  const tilewise_tensor k = call.data.tensors(kBackward).k, dk = call.data.tensors(kBackward).dk;
  const int64_t bytes = 2 * k.shape[1] * k.shape[2] * k.shape[3], all = 2 * (kFar + bytes);
  if (cuda_device()->memory_bytes < 2 * all + (int64_t{1} << 30))
    GTEST_SKIP() << "the device has too little memory";
  std::byte* blocks[2] = {};
  for (std::byte*& block : blocks)
    ASSERT_EQ(cuda::allocate(0, all, reinterpret_cast<void**>(&block)).message(), "");
  for (const int64_t b : {0, 1}) {
    const auto* from = static_cast<const std::byte*>(k.data) + 2 * b * k.stride[0];
    ASSERT_EQ(cuda::copy(0, blocks[0] + 2 * b * kFar, from, bytes).message(), "");
  }
  call.tensors.k.data = blocks[0];
  call.tensors.dk.data = blocks[1];
  call.tensors.k.stride[0] = call.tensors.dk.stride[0] = kFar;
  EXPECT_EQ(attention(context(), call.data.problem(kBackward), call.tensors).message(), "");
  call.download("far");
  for (const int64_t b : {0, 1}) {
    auto* to = static_cast<std::byte*>(dk.data) + 2 * b * dk.stride[0];
    ASSERT_EQ(cuda::copy(0, to, blocks[1] + 2 * b * kFar, bytes).message(), "");
  }
  const Expectation expected = call.expectation();
  const Comparison worst = compare_outputs(call.data, kBackward, expected);
  EXPECT_TRUE(worst.passed()) << worst.text;
  for (std::byte* block : blocks) cuda::release(0, block);
}

}  // namespace
}  // namespace tilewise
