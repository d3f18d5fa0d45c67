// Two CUDA runtimes in one program: the library's, whose names are local to it, and the program's own.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tilewise/plan.h"

namespace tilewise {
namespace {

TEST(TwoRuntimes, BothAnswerAlike) {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  EXPECT_EQ(DeviceInfo::query(TILEWISE_CUDA, 0).ok(), found);
}

TEST(TwoRuntimes, AFaultlessDeviceIsWaitedFor) {
  EXPECT_TRUE(DeviceInfo().wait().ok()) << "the CPU has nothing to wait for";
  EXPECT_EQ(tilewise_device_wait(7, 0, nullptr), TILEWISE_INVALID);
  const auto device = DeviceInfo::query(TILEWISE_CUDA, 0);
  if (device) {
    EXPECT_TRUE(device->wait().ok()) << device->wait().message();
  } else {
    tilewise_error error;
    EXPECT_NE(tilewise_device_wait(TILEWISE_CUDA, 0, &error), TILEWISE_OK);
    EXPECT_EQ(device.status().message(), error.message);
  }
}

// Memory of the program's runtime is good for the library's: they share the device's context.
TEST(TwoRuntimes, PointersAreGoodForBoth) {
  if (!DeviceInfo::query(TILEWISE_CUDA, 0))
    GTEST_SKIP() << DeviceInfo::query(TILEWISE_CUDA, 0).status().message();
  tilewise_plan plan{};
  plan.device_kind = TILEWISE_CUDA;
  plan.workspace_bytes = 4096;
  tilewise_workspace workspace{nullptr, 0};
  ASSERT_EQ(tilewise_workspace_allocate(&plan, &workspace, nullptr), TILEWISE_OK);
  char control[TILEWISE_CONTROL_BYTES];
  EXPECT_EQ(cudaMemcpy(control, workspace.data, sizeof control, cudaMemcpyDeviceToHost), cudaSuccess);
  for (const char byte : control) EXPECT_EQ(byte, 0);
  tilewise_workspace_release(&plan, workspace);
}

}  // namespace
}  // namespace tilewise
