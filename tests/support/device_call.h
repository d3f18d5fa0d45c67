// A case as a call on device tensors, and the fixture of tests that need a device.
#ifndef TILEWISE_TESTS_SUPPORT_DEVICE_CALL_H_
#define TILEWISE_TESTS_SUPPORT_DEVICE_CALL_H_

#include <gtest/gtest.h>

#include "cuda/mirror.h"
#include "cuda/runtime.h"
#include "tests/support/kernel_run.h"

namespace tilewise::testing_support {

// Skipped with the reason where there is no device.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_device()) GTEST_SKIP() << cuda_device().status().message();
  }
};

// A call on device tensors, with its own copies.
struct DeviceCall {
  explicit DeviceCall(const std::string& line, DType dtype = DType::f32)
      : source(*parse_case(line)), data(source, dtype, 7), mirror(0) {
    data.poison_outputs(Direction::forward, Poison::nan);
    data.for_each_tensor([&](const char*, CaseTensor& t) { mirror.add(t.memory(), t.memory_bytes()); });
    EXPECT_EQ(mirror.upload().message(), "");
    tensors = mirror.twins(data.tensors(Direction::forward));
  }
  void check(const std::string& what) {
    EXPECT_EQ(cuda::synchronize(0).message(), "") << what;
    data.for_each_tensor([&](const char*, CaseTensor& t) {
      EXPECT_EQ(mirror.download(t.memory(), t.memory_bytes()).message(), "");
    });
    const Expectation expectation = expect_forward(data.params(Direction::forward));
    const Comparison worst = compare_outputs(data, Direction::forward, expectation);
    EXPECT_TRUE(worst.passed()) << what << ": " << worst.text;
    EXPECT_EQ(data.damage(Direction::forward, expectation), "") << what;
  }
  Problem options() const {
    Problem p = data.problem(Direction::forward);
    return p;
  }
  const Case source;
  CaseData data;
  cuda::Mirror mirror;
  Tensors tensors{};
};

}  // namespace tilewise::testing_support
#endif  // TILEWISE_TESTS_SUPPORT_DEVICE_CALL_H_
