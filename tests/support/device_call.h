// A call on device tensors, with its own copies: a case's tensors on a CUDA device, the first unless said,
// outputs poisoned, and the answer held against the oracle; and the fixture of tests that make such calls.
#ifndef TILEWISE_TESTS_SUPPORT_DEVICE_CALL_H_
#define TILEWISE_TESTS_SUPPORT_DEVICE_CALL_H_

#include <gtest/gtest.h>

#include <string>

#include "cuda/mirror.h"
#include "cuda/runtime.h"
#include "reference/case_data.h"
#include "tests/support/kernel_run.h"

namespace tilewise::testing_support {

struct DeviceCall {
  explicit DeviceCall(const std::string& line, DType dtype = DType::f32, Direction way = Direction::forward,
                      int on = 0)
      : source(*parse_case(line)), direction(way), device(on), data(source, dtype, 7), mirror(on) {
    if (direction == Direction::backward)
      data.set_forward_result(expect_forward(data.params(Direction::forward)));
    data.poison_outputs(direction, Poison::nan);
    data.for_each_tensor([&](const char*, CaseTensor& t) { mirror.add(t.memory(), t.memory_bytes()); });
    EXPECT_EQ(mirror.upload().message(), "");
    tensors = mirror.twins(data.tensors(direction));
  }
  void download(const std::string& what) {
    EXPECT_EQ(cuda::synchronize(device).message(), "") << what;
    data.for_each_tensor([&](const char*, CaseTensor& t) {
      EXPECT_EQ(mirror.download(t.memory(), t.memory_bytes()).message(), "");
    });
  }
  // Not for `accumulate`, whose expectation follows from what the outputs held.
  Expectation expectation() const {
    return direction == Direction::forward ? expect_forward(data.params(direction))
                                           : expect_backward(data.params(direction));
  }
  void check(const std::string& what) {
    download(what);
    const Expectation expected = expectation();
    const Comparison worst = compare_outputs(data, direction, expected);
    EXPECT_TRUE(worst.passed()) << what << ": " << worst.text;
    EXPECT_EQ(data.damage(direction, expected), "") << what;
  }

  const Case source;
  const Direction direction;
  const int device;
  CaseData data;
  cuda::Mirror mirror;
  Tensors tensors{};
};

// Skipped, with the reason, where there is no device.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_device()) GTEST_SKIP() << cuda_device().status().message();
  }
  static const Context& context() { return shared_context().context(); }
  static Status run(const DeviceCall& call, void* stream = nullptr) {
    return attention(context(), call.data.problem(call.direction), call.tensors, stream);
  }
};

}  // namespace tilewise::testing_support
#endif  // TILEWISE_TESTS_SUPPORT_DEVICE_CALL_H_
