// Calls that fail on a device: each is a status with a sentence, leaves nothing behind, and the next call
// works; and the memory that the one-call form keeps for a stream. How a caller provokes it is real: a legacy
// stream beside a capture, an address that is no memory, a workspace that is too small, a device that is
// full.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <thread>

#include "api/stream_workspaces.h"
#include "core/text.h"
#include "tests/support/device_call.h"
#include "tests/support/driver.h"

namespace tilewise {
namespace {

using namespace testing_support;

constexpr const char* kLine =
    "name=a batch=2 heads_q=4 heads_kv=2 seqlen_q=70 seqlen_kv=90 head_dim=64 causal=bottom-right";

class CudaFaults : public CudaTest {};

TEST_F(CudaFaults, ALaunchThatTheDeviceRefusesIsReportedAndTheNextCallWorks) {
  Driver& driver = Driver::get();
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      DeviceCall call(kLine, dtype, direction);
      const auto made = plan(call.data.problem(direction), *cuda_device());
      ASSERT_TRUE(made.ok()) << made.status().message();
      ASSERT_EQ(prepare(context(), *made).message(), "");
      auto workspace = Workspace::make(*made);
      ASSERT_TRUE(workspace.ok());
      const auto planned = [&](void* stream) {
        return direction == Direction::forward ? forward(context(), *made, call.tensors, *workspace, stream)
                                               : backward(context(), *made, call.tensors, *workspace, stream);
      };
      // The default stream waits for streams like this one, and so may not be used while it is captured.
      void* stream = driver.new_stream(0, true);
      ASSERT_EQ(driver.begin_capture(stream), 0);
      const Status refused = planned(nullptr);
      EXPECT_EQ(driver.end_capture(stream), nullptr) << "the capture was not spoilt: nothing was provoked";
      EXPECT_EQ(refused.code(), Code::device) << refused.message();
      EXPECT_NE(refused.message().find(cat(made->kernel, " could not be launched: ")), std::string::npos)
          << refused.message();
      ASSERT_EQ(driver.begin_capture(stream), 0);
      const Status one_call = run(call);  // which asks before it launches
      (void)driver.end_capture(stream);
      EXPECT_EQ(one_call.code(), Code::device) << one_call.message();
      EXPECT_EQ(planned(stream).message(), "");
      call.check("after it");
      EXPECT_EQ(run(call).message(), "");
      call.check("the one-call form after it");
      driver.destroy_stream(stream);
    }
  }
}

TEST_F(CudaFaults, AWorkspaceThatIsTooSmallIsRefusedBySentence) {
  DeviceCall call(kLine, DType::bf16, Direction::backward);
  const auto made = plan(call.data.problem(Direction::backward), *cuda_device());
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_GT(made->workspace_bytes, TILEWISE_CONTROL_BYTES);
  auto workspace = Workspace::make(*made);
  ASSERT_TRUE(workspace.ok());
  tilewise_workspace small = *workspace;
  small.bytes = made->workspace_bytes - 1;
  const Status status = backward(context(), *made, call.tensors, small);
  EXPECT_EQ(status.code(), Code::out_of_memory);
  EXPECT_EQ(status.message(),
            cat("workspace has ", small.bytes, " bytes; accepted: ", made->workspace_bytes, " or more"));
  EXPECT_EQ(backward(context(), *made, call.tensors, *workspace).message(), "");
  call.check("after it");
}

TEST_F(CudaFaults, AnAllocationInAStreamThatFailsLeavesNoError) {
  void* data = &data;
  const Status status = cuda::allocate_in(0, nullptr, int64_t{1} << 46, &data);
  EXPECT_EQ(status.code(), Code::out_of_memory) << status.message();
  EXPECT_EQ(data, nullptr);
  DeviceCall call(kLine, DType::bf16);
  EXPECT_EQ(run(call).message(), "");
  call.check("after it");
}

// Takes nearly all memory of the device, so other processes may not be at work on it: TILEWISE_TEST_ALONE.
TEST_F(CudaFaults, OutOfMemoryOfTheOneCallFormLeavesNothing) {
  if (!std::getenv("TILEWISE_TEST_ALONE")) GTEST_SKIP() << "needs the device alone: TILEWISE_TEST_ALONE=1";
  DeviceCall call("name=a batch=16 heads_q=16 seqlen_q=64 head_dim=64 deterministic=1", DType::bf16,
                  Direction::backward);
  ASSERT_EQ(run(call).message(), "");
  ASSERT_EQ(cuda::synchronize(0).message(), "");
  const auto gradients = [&] {
    call.download("gradients");
    CaseTensor& dq = call.data.dq;
    return std::vector<std::byte>(dq.memory(), dq.memory() + dq.memory_bytes());
  };
  const std::vector<std::byte> before = gradients();
  const uint64_t used = Driver::get().pool_bytes(0);
  std::vector<void*> taken;
  for (int64_t bytes = int64_t{1} << 30; bytes >= int64_t{2} << 20; bytes /= 2) {
    for (void* block = nullptr; cuda::allocate(0, bytes, &block).ok();) taken.push_back(block);
  }
  for (int again = 0; again < 50; ++again) {
    const Status status = run(call);
    ASSERT_EQ(status.code(), Code::out_of_memory) << status.message();
    ASSERT_NE(status.message().find("the device has no memory left"), std::string::npos) << status.message();
  }
  EXPECT_EQ(Driver::get().pool_bytes(0), used);
  for (void* block : taken) cuda::release(0, block);
  call.data.poison_outputs(Direction::backward, Poison::nan);
  ASSERT_EQ(call.mirror.upload().message(), "");
  EXPECT_EQ(run(call).message(), "");
  EXPECT_EQ(gradients(), before);
}

using CudaFaultsDeathTest = CudaFaults;

// A device that has met such an address is lost to its process, so this happens in a child.
TEST_F(CudaFaultsDeathTest, AnAddressThatIsNoMemoryIsReportedAtTheNextWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto child = [](DType dtype) {
    DeviceCall call(kLine, dtype);
    Tensors wild = call.tensors;
    wild.k.data = reinterpret_cast<void*>(uintptr_t{1} << 45);
    const Status launched = attention(context(), call.data.problem(Direction::forward), wild);
    const Status waited = cuda::synchronize(0);
    const Status next = run(call);
    std::fprintf(stderr, "launched: %s\nwaited: %s\nnext: %s\n", launched.message().c_str(),
                 waited.message().c_str(), next.message().c_str());
    std::_Exit(waited.code() == Code::device && next.code() == Code::device ? 0 : 1);
  };
  for (const DType dtype : {DType::bf16, DType::f32})
    EXPECT_EXIT(child(dtype), testing::ExitedWithCode(0), "waited: a kernel failed on the device: ");
}

// Streams of every kind, more than keep a workspace, one after the other and at once; some are gone by then.
TEST_F(CudaFaults, EachStreamHasAWorkspaceOfItsOwn) {
  Driver& driver = Driver::get();
  std::deque<DeviceCall> calls;
  std::vector<void*> streams;
  for (size_t n = 0; n < StreamWorkspaces::kMostStreams + 8; ++n) {
    calls.emplace_back(kLine, DType::bf16, n % 2 ? Direction::backward : Direction::forward);
    streams.push_back(n < 3 ? reinterpret_cast<void*>(n)
                            : driver.new_stream(0, n % 3 == 0));  // 0: legacy, 2: own
  }
  auto own = Context::create({});
  ASSERT_TRUE(own.ok());
  for (int again = 0; again < 3; ++again) {
    for (size_t n = 0; n < calls.size(); ++n) {
      DeviceCall& call = calls[n];
      ASSERT_EQ(attention(*own, call.data.problem(call.direction), call.tensors, streams[n]).message(), "");
    }
  }
  for (DeviceCall& call : calls) call.check("a stream of its own");
  for (size_t n = 3; n < streams.size(); ++n) driver.destroy_stream(streams[n]);
  void* stream = driver.new_stream(0);  // whose handle may have been another's
  ASSERT_EQ(attention(*own, calls[0].data.problem(Direction::forward), calls[0].tensors, stream).message(),
            "");
  calls[0].check("a stream with a handle that was used before");
  driver.destroy_stream(stream);
}

// What a graph writes into is not what an eager call of another stream writes into.
TEST_F(CudaFaults, AReplayBesideEagerCallsOfItsStreamsContext) {
  constexpr const char* kLong = "name=g heads_q=2 heads_kv=2 seqlen_q=1 seqlen_kv=9000 head_dim=64";
  DeviceCall eager(kLong, DType::bf16), captured(kLong, DType::bf16);
  ASSERT_EQ(run(eager).message(), "");
  auto graph = cuda::GraphTimer::capture(0, 20, [&](void* stream) { return run(captured, stream); });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  std::atomic<bool> stop{false};
  Status failed;
  std::thread replays([&] {
    while (!stop) {
      const auto ms = graph->milliseconds();
      if (!ms) failed = ms.status();
    }
  });
  auto own = Context::create({});
  for (int n = 0; n < 300; ++n)
    ASSERT_EQ(attention(*own, eager.data.problem(Direction::forward), eager.tensors,
                        reinterpret_cast<void*>(uintptr_t{2}))
                  .message(),
              "");
  ASSERT_EQ(cuda::synchronize(0).message(), "");
  stop = true;
  replays.join();
  EXPECT_EQ(failed.message(), "");
  eager.check("eager");
  captured.check("replayed");
}

// One context, one legacy stream, calls of several launches and both directions from many threads.
TEST_F(CudaFaults, ManyHostThreadsShareAStreamInTheOneCallForm) {
  auto own = Context::create({});
  ASSERT_TRUE(own.ok());
  std::deque<DeviceCall> calls;
  const char* const lines[] = {kLine, "name=d heads_q=8 heads_kv=2 seqlen_q=1 seqlen_kv=3000 head_dim=128",
                               "name=s batch=3 heads_q=2 seqlen_q=33 head_dim=32 sinks=random"};
  for (int n = 0; n < 9; ++n)
    calls.emplace_back(lines[n % 3], n % 2 ? DType::bf16 : DType::f32,
                       n % 3 != 1 && n > 4 ? Direction::backward : Direction::forward);
  std::atomic<int> failures{0};
  std::vector<std::thread> callers;
  for (DeviceCall& call : calls) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 40; ++repeat)
        if (!attention(*own, call.data.problem(call.direction), call.tensors)) ++failures;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
  for (DeviceCall& call : calls) call.check("one of many callers");
}

// Each row of both directions: what a replay writes is what the call writes.
TEST_F(CudaFaults, EveryRowCanBeCaptured) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Kernel* kernel : kernels_of(direction, true)) {
      SCOPED_TRACE(kernel->name);
      if (kernel->target == Target::sm90 && cuda_device()->isa != 90) continue;
      bool ran = false;
      for (int dim : {64, 96, 128, 192, 256}) {
        if (ran) break;
        DeviceCall call(cat("name=c heads_q=2 seqlen_q=40 head_dim=", dim,
                            dim == 192 ? " head_dim_v=128" : "", words_for(*kernel)),
                        dtype_for(*kernel), direction);
        Limits limits;
        limits.kernel = kernel->name;
        const auto made = plan(call.data.problem(direction), *cuda_device(), limits);
        if (!made) continue;
        ran = true;
        ASSERT_EQ(prepare(context(), *made).message(), "");
        auto workspace = Workspace::make(*made);
        ASSERT_TRUE(workspace.ok());
        auto graph = cuda::GraphTimer::capture(0, 2, [&](void* stream) {
          return direction == Direction::forward
                     ? forward(context(), *made, call.tensors, *workspace, stream)
                     : backward(context(), *made, call.tensors, *workspace, stream);
        });
        ASSERT_TRUE(graph.ok()) << graph.status().message();
        for (int replay = 0; replay < 2; ++replay) ASSERT_TRUE(graph->milliseconds().ok());
        call.check("replayed");
      }
      EXPECT_TRUE(ran);
    }
  }
}

}  // namespace
}  // namespace tilewise
