// Two devices in one process: tensors of one while the other is current, both at once, and what is refused.
// Skipped where there is one.

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>

#include "core/text.h"
#include "tests/support/device_call.h"
#include "tests/support/driver.h"

namespace tilewise {
namespace {

using namespace testing_support;

constexpr const char* kLine =
    "name=a batch=2 heads_q=4 heads_kv=2 seqlen_q=70 seqlen_kv=90 head_dim=64 causal=bottom-right";

class CudaDevices : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (const auto count = cuda::device_count(); !count || *count < 2) GTEST_SKIP() << "one device is found";
    ASSERT_EQ(cuda::synchronize(0).message(), "");  // so that device 0 is current
    ASSERT_EQ(Driver::get().current_device(), 0);
  }
};

TEST_F(CudaDevices, TheSecondComputesWhatTheFirstDoesWhileTheFirstIsCurrent) {
  for (const char* line :
       {kLine, "name=b heads_q=8 heads_kv=2 seqlen_q=1 seqlen_kv=3000 head_dim=128",
        "name=c heads_q=2 head_dim=96 cu_seqlens_q=0,40,90 cu_seqlens_kv=0,10,200 sinks=random",
        "name=d batch=2 heads_q=2 seqlen_q=40 head_dim=64 mask=b11k:random:0.7 dropout=0.2"}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        SCOPED_TRACE(cat(line, " ", name_of(dtype), direction == Direction::forward ? "" : " backward"));
        std::vector<std::byte> bits[2];
        for (const int device : {1, 0}) {  // the second first: nothing is loaded yet
          DeviceCall call(cat(line, " deterministic=1"), dtype, direction, device);
          ASSERT_EQ(run(call).message(), "");
          EXPECT_EQ(Driver::get().current_device(), 0);
          call.check(cat("device ", device));
          bits[device] = output_bits(call.data, direction, call.expectation());
        }
        EXPECT_EQ(bits[0], bits[1]);
      }
    }
  }
}

// A plan that was made for the second, which nobody prepared.
TEST_F(CudaDevices, APlanOfTheSecondRunsThereWithoutPrepare) {
  const auto second = DeviceInfo::query(TILEWISE_CUDA, 1);
  ASSERT_TRUE(second.ok()) << second.status().message();
  for (const char* dims : {"head_dim=128", "head_dim=256"}) {
    DeviceCall call(cat("name=a heads_q=2 seqlen_q=300 ", dims), DType::bf16, Direction::forward, 1);
    const auto made = plan(call.data.problem(Direction::forward), *second);
    ASSERT_TRUE(made.ok()) << made.status().message();
    auto workspace = Workspace::make(*made);
    ASSERT_TRUE(workspace.ok());
    EXPECT_EQ(forward(context(), *made, call.tensors, *workspace).message(), "");
    EXPECT_EQ(Driver::get().current_device(), 0);
    call.check(dims);
  }
}

TEST_F(CudaDevices, MixedDevicesAreRefusedBySentence) {
  DeviceCall call(kLine, DType::bf16), other(kLine, DType::bf16, Direction::forward, 1);
  Tensors mixed = call.tensors;
  mixed.k = other.tensors.k;
  const Status status = attention(context(), call.data.problem(Direction::forward), mixed);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("k is on CUDA device 1; accepted: CUDA device 0"), std::string::npos)
      << status.message();
  const auto made = plan(call.data.problem(Direction::forward), *cuda_device());
  ASSERT_TRUE(made.ok());
  auto workspace = Workspace::make(*made);
  const Status planned = forward(context(), *made, other.tensors, *workspace);
  EXPECT_NE(planned.message().find("q is on CUDA device 1; accepted: CUDA device 0, as planned"),
            std::string::npos)
      << planned.message();
}

TEST_F(CudaDevices, AStreamOfTheOtherDeviceIsRefusedAndTheNextCallWorks) {
  Driver& driver = Driver::get();
  void* streams[] = {driver.new_stream(0), driver.new_stream(1)};
  for (const int device : {0, 1}) {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      DeviceCall call(kLine, DType::bf16, direction, device);
      const Status status = run(call, streams[1 - device]);
      EXPECT_EQ(status.code(), Code::invalid);
      EXPECT_EQ(status.message(),
                cat("the stream is of CUDA device ", 1 - device, "; accepted: a stream of CUDA device ",
                    device, ", where the tensors are"));
      EXPECT_EQ(run(call, streams[device]).message(), "");
      call.check("after it");
      EXPECT_EQ(driver.current_device(), 0);
    }
  }
  for (void* stream : streams) driver.destroy_stream(stream);
}

TEST_F(CudaDevices, AThreadForEachWithStreamsOfItsOwn) {
  auto own = Context::create({});  // the shared one's log is for one thread
  ASSERT_TRUE(own.ok());
  std::deque<DeviceCall> calls;
  for (int n = 0; n < 8; ++n)
    calls.emplace_back(kLine, DType::bf16, n / 2 % 2 ? Direction::backward : Direction::forward, n % 2);
  std::atomic<int> failures{0};
  std::vector<std::thread> callers;
  for (DeviceCall& call : calls) {
    callers.emplace_back([&] {
      void* stream = Driver::get().new_stream(call.device);
      for (int repeat = 0; repeat < 30; ++repeat)
        if (!attention(*own, call.data.problem(call.direction), call.tensors, stream)) ++failures;
      if (!cuda::synchronize(call.device)) ++failures;
      Driver::get().destroy_stream(stream);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
  for (DeviceCall& call : calls) call.check(cat("device ", call.device));
}

// A context that plans for the second device by itself, and a graph there.
TEST_F(CudaDevices, AContextOfTheSecondPlansAndCapturesThere) {
  ContextOptions options;
  options.device_kind = TILEWISE_CUDA;
  options.device_index = 1;
  auto own = Context::create(options);
  ASSERT_TRUE(own.ok()) << own.status().message();
  DeviceCall call(kLine, DType::bf16, Direction::forward, 1);
  const auto made = plan(call.data.problem(Direction::forward), *own);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->device_index, 1);
  ASSERT_EQ(prepare(*own, *made).message(), "");
  auto workspace = Workspace::make(*made);
  ASSERT_TRUE(workspace.ok());
  auto graph = cuda::GraphTimer::capture(
      1, 3, [&](void* stream) { return forward(*own, *made, call.tensors, *workspace, stream); });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  ASSERT_TRUE(graph->milliseconds().ok());
  EXPECT_EQ(Driver::get().current_device(), 0);
  call.check("replayed");
}

}  // namespace
}  // namespace tilewise
