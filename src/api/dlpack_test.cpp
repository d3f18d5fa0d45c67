#include "api/dlpack.h"

#include <gtest/gtest.h>

#include "tilewise/tensor.h"

namespace tilewise {
namespace {

struct Dl : testing::Test {
  float data[64] = {};
  int64_t shape[5] = {2, 3, 4, 1, 1}, strides[5] = {20, 4, 1, 1, 1};
  dlpack::ManagedTensor managed{};
  dlpack::ManagedTensorVersioned versioned{};
  tilewise_tensor out{};
  tilewise_error error{};

  Dl() {
    managed.tensor = {data, {dlpack::kCpu, 0}, 3, {dlpack::kFloat, 32, 1}, shape, nullptr, 0};
    versioned.version = {1, 1};
    versioned.tensor = managed.tensor;
  }
  tilewise_code read() { return tilewise_tensor_from_dlpack(&managed, &out, &error); }
  bool says(const char* part) { return std::string(error.message).find(part) != std::string::npos; }
};

TEST_F(Dl, NullStridesMeanRowMajor) {
  ASSERT_EQ(read(), TILEWISE_OK) << error.message;
  EXPECT_EQ(out.data, data);
  EXPECT_EQ(out.dtype, TILEWISE_F32);
  EXPECT_EQ(out.rank, 3);
  EXPECT_EQ(out.shape[1], 3);
  EXPECT_EQ(out.stride[0], 12);
  EXPECT_EQ(out.stride[2], 1);
  EXPECT_EQ(out.flags, 0u);
}

TEST_F(Dl, StridesAndByteOffset) {
  managed.tensor.strides = strides;
  managed.tensor.byte_offset = 8;
  ASSERT_EQ(read(), TILEWISE_OK);
  EXPECT_EQ(out.data, data + 2);
  EXPECT_EQ(out.stride[0], 20);
}

TEST_F(Dl, VersionedKeepsReadOnly) {
  versioned.flags = dlpack::kReadOnly | 2;  // 2: the producer made a copy
  ASSERT_EQ(tilewise_tensor_from_dlpack_versioned(&versioned, &out, &error), TILEWISE_OK) << error.message;
  EXPECT_EQ(out.flags, TILEWISE_READ_ONLY);
  EXPECT_EQ(out.shape[2], 4);
  versioned.version.major = 2;
  EXPECT_EQ(tilewise_tensor_from_dlpack_versioned(&versioned, &out, &error), TILEWISE_INVALID);
  EXPECT_TRUE(says("version 2.1; accepted: 1.x")) << error.message;
}

TEST_F(Dl, Dtypes) {
  const struct {
    uint8_t code, bits;
    int32_t dtype;
  } known[] = {{2, 32, TILEWISE_F32}, {2, 16, TILEWISE_F16}, {4, 16, TILEWISE_BF16}, {0, 32, TILEWISE_I32},
               {0, 64, TILEWISE_I64}, {1, 64, TILEWISE_U64}, {6, 8, TILEWISE_BOOL}};
  for (const auto& k : known) {
    managed.tensor.dtype = {k.code, k.bits, 1};
    ASSERT_EQ(read(), TILEWISE_OK);
    EXPECT_EQ(out.dtype, k.dtype);
  }
  managed.tensor.dtype = {2, 64, 1};
  EXPECT_EQ(read(), TILEWISE_INVALID);
  EXPECT_TRUE(says("type code 2 with 64 bits")) << error.message;
  managed.tensor.dtype = {2, 32, 4};
  EXPECT_EQ(read(), TILEWISE_INVALID);
  EXPECT_TRUE(says("4 lanes")) << error.message;
}

TEST_F(Dl, Devices) {
  managed.tensor.device = {dlpack::kCudaHost, 0};
  ASSERT_EQ(read(), TILEWISE_OK);
  EXPECT_EQ(out.device_kind, TILEWISE_CPU);
  for (int32_t type : {dlpack::kCuda, dlpack::kCudaManaged}) {
    managed.tensor.device = {type, 3};
    ASSERT_EQ(read(), TILEWISE_OK);
    EXPECT_EQ(out.device_kind, TILEWISE_CUDA);
    EXPECT_EQ(out.device_index, 3);
  }
  managed.tensor.device = {10, 0};  // ROCm
  EXPECT_EQ(read(), TILEWISE_INVALID);
  EXPECT_TRUE(says("device type 10")) << error.message;
}

TEST_F(Dl, Refusals) {
  managed.tensor.rank = 5;
  EXPECT_EQ(read(), TILEWISE_INVALID);
  EXPECT_TRUE(says("5 dimensions; accepted: 0 to 4")) << error.message;
  managed.tensor.rank = 3;
  shape[1] = -1;
  EXPECT_EQ(read(), TILEWISE_INVALID);
  EXPECT_TRUE(says("shape [2, -1, 4]")) << error.message;
  managed.tensor.shape = nullptr;
  EXPECT_EQ(read(), TILEWISE_INVALID);
  EXPECT_EQ(tilewise_tensor_from_dlpack(nullptr, &out, &error), TILEWISE_INVALID);
  EXPECT_TRUE(says("dl_managed_tensor is NULL"));
}

TEST_F(Dl, EmptyTensorsMayHaveNoData) {
  managed.tensor.data = nullptr;
  managed.tensor.byte_offset = 4;
  shape[1] = 0;
  ASSERT_EQ(read(), TILEWISE_OK);
  EXPECT_EQ(out.data, nullptr);
}

// The layout that producers compiled against dlpack.h have.
TEST(DlPackAbi, Offsets) {
  EXPECT_EQ(sizeof(dlpack::Tensor), 48u);
  EXPECT_EQ(offsetof(dlpack::Tensor, dtype), 20u);
  EXPECT_EQ(offsetof(dlpack::Tensor, shape), 24u);
  EXPECT_EQ(sizeof(dlpack::ManagedTensor), 64u);
  EXPECT_EQ(offsetof(dlpack::ManagedTensorVersioned, flags), 24u);
  EXPECT_EQ(offsetof(dlpack::ManagedTensorVersioned, tensor), 32u);
}

}  // namespace
}  // namespace tilewise
