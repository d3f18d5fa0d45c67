// What check_data sees of a device's indices is what they are: any strides, nothing outside them.
#include "api/device_values.h"

#include <gtest/gtest.h>

#include <cstring>

#include "api/bind.h"

namespace tilewise {
namespace {

// Stands for a device: hands out bytes of its own memory alone.
struct Device {
  std::vector<int32_t> memory;
  int64_t copied = 0;

  HostIndices::Copy copy() {
    return [this](void* to, const void* from, int64_t bytes) -> Status {
      const auto* at = static_cast<const char*>(from);
      const auto* begin = reinterpret_cast<const char*>(memory.data());
      if (at < begin || at + bytes > begin + memory.size() * sizeof(int32_t))
        return {Code::device, "outside of the tensor"};
      std::memcpy(to, from, static_cast<size_t>(bytes));
      copied += bytes;
      return {};
    };
  }
};

struct Paged {
  Device device{{4, 3, 2, 1, 0, 9}};
  Device lengths{{-1, 5, -1, 6}};
  ForwardParams p;
  Problem problem;

  Paged() {
    p.batch = 2;
    p.seqlen_q = 1;
    p.seqlen_kv = 6;
    p.page_size = 2;
    p.num_pages = 5;
    p.page_table = {device.memory.data() + 2, DType::i32, 3, -1, 0};  // backwards: 2 3 4, 9 0 1
    p.kv_lengths = {lengths.memory.data() + 1, DType::i32, 2, 0, 0};
    problem.seqlen_q = 1;
    problem.seqlen_kv = 6;
  }
  Status check() {
    HostIndices host([this](void* to, const void* from, int64_t bytes) {
      const auto* at = static_cast<const int32_t*>(from);
      const bool table = at >= device.memory.data() && at < device.memory.data() + device.memory.size();
      return table ? device.copy()(to, from, bytes) : lengths.copy()(to, from, bytes);
    });
    ForwardParams seen = p;
    if (Status s = host.fetch(seen); !s.ok()) return s;
    return check_values(problem, seen, true);
  }
};

TEST(DeviceValues, AreCheckedAsThoseOfTheHost) {
  Paged bad;
  EXPECT_NE(bad.check().message().find("page_table of sequence 1 entry 0 is 9; accepted: 0 to 4"),
            std::string::npos)
      << bad.check().message();
  Paged good;
  good.device.memory[5] = 1;
  EXPECT_EQ(good.check().message(), "");
  EXPECT_EQ(good.device.copied, 6 * 4);
  EXPECT_EQ(good.lengths.copied, 3 * 4);
  good.lengths.memory[3] = 7;
  EXPECT_NE(good.check().message().find("kv_lengths[1] is 7; accepted: 0 to 6"), std::string::npos);
}

TEST(DeviceValues, OfAnAppend) {
  Device device{{7, 3}};
  AppendParams a;
  a.batch = 2;
  a.starts = {device.memory.data(), DType::i32, 1, 0, 0};
  HostIndices host(device.copy());
  ASSERT_TRUE(host.fetch(a).ok());
  EXPECT_EQ(read_index(a.starts, 0), 7);
  EXPECT_EQ(read_index(a.starts, 1), 3);
  EXPECT_NE(a.starts.data, device.memory.data());
}

TEST(DeviceValues, AFailedCopyIsReported) {
  HostIndices host([](void*, const void*, int64_t) { return Status(Code::device, "gone"); });
  Paged call;
  EXPECT_EQ(host.fetch(call.p).message(), "gone");
}

}  // namespace
}  // namespace tilewise
