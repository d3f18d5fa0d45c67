#include "cpu/features.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tilewise {
namespace {

// A made-up root with /proc and /sys files.
struct Root : testing::Test {
  Root() {
    std::string name = (std::filesystem::temp_directory_path() / "tilewise_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Root() override { std::filesystem::remove_all(path); }
  void file(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((path + name).substr(0, (path + name).find_last_of('/')));
    std::ofstream(path + name) << text;
  }
  std::string path;
};

TEST_F(Root, NothingToReadGivesModestFiguresNeverZero) {
  const tilewise_device_info d = query_cpu(path);
  EXPECT_GE(d.cores, 1);
  EXPECT_EQ(d.l1_bytes, 32 << 10);
  EXPECT_GT(d.l2_bytes, 0);
  EXPECT_GT(d.l3_bytes, 0);
  EXPECT_GT(d.core_gflops, 0);
  EXPECT_GT(d.memory_gbps, 0);
  EXPECT_STREQ(d.name, "CPU");
  EXPECT_EQ(cgroup_cpu_quota(path), 0);
  EXPECT_EQ(available_memory(path), -1);
}

TEST_F(Root, Caches) {
  const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index";
  file(cache + "0/size", "48K\n");
  file(cache + "0/level", "1\n");
  file(cache + "0/type", "Data\n");
  file(cache + "1/size", "64K\n");
  file(cache + "1/level", "1\n");
  file(cache + "1/type", "Instruction\n");
  file(cache + "2/size", "2048K\n");
  file(cache + "2/level", "2\n");
  file(cache + "2/type", "Unified\n");
  file(cache + "3/size", "0K\n");  // some virtual machines say so
  file(cache + "3/level", "3\n");
  const tilewise_device_info d = query_cpu(path);
  EXPECT_EQ(d.l1_bytes, 48 << 10);
  EXPECT_EQ(d.l2_bytes, 2 << 20);
  EXPECT_EQ(d.l3_bytes, 4 << 20);
}

TEST_F(Root, QuotaV2BindsAtAnyLevel) {
  file("/proc/self/cgroup", "0::/box/inner\n");
  file("/sys/fs/cgroup/box/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(path), 0);
  file("/sys/fs/cgroup/box/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(path), 1.5);
  EXPECT_EQ(usable_cores(path), 1);
}

TEST_F(Root, QuotaV2InAContainerStandsAtTheTop) {
  file("/proc/self/cgroup", "0::/\n");
  file("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(path), 0.5);
  EXPECT_EQ(usable_cores(path), 1);
}

TEST_F(Root, QuotaV1) {
  file("/proc/self/cgroup", "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n");
  file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(path), 0);
  file("/sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us", "300000\n");
  file("/sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(path), 3.0);
}

TEST_F(Root, TwoThreadsOfACoreCountOnce) {
  for (int cpu = 0; cpu < 256; ++cpu) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    file(folder + "core_id", "0\n");
    file(folder + "physical_package_id", "0\n");
  }
  EXPECT_EQ(usable_cores(path), 1);
}

TEST_F(Root, MemoryIsTheLeastOfMachineAndCgroup) {
  file("/proc/meminfo", "MemTotal: 8000 kB\nMemFree: 10 kB\nMemAvailable:    4000 kB\n");
  EXPECT_EQ(available_memory(path), 4000 * 1024);
  file("/proc/self/cgroup", "0::/box\n");
  file("/sys/fs/cgroup/box/memory.max", "max\n");
  file("/sys/fs/cgroup/box/memory.current", "1000000\n");
  EXPECT_EQ(available_memory(path), 4000 * 1024);
  file("/sys/fs/cgroup/box/memory.max", "3000000\n");
  EXPECT_EQ(available_memory(path), 2000000);
  file("/sys/fs/cgroup/box/memory.stat", "anon 5\nactive_file 7\ninactive_file 400000\n");
  EXPECT_EQ(available_memory(path), 2400000);
}

TEST_F(Root, MemoryV1) {
  file("/proc/self/cgroup", "5:memory:/a\n");
  file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000000\n");
  file("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "6000000\n");
  EXPECT_EQ(available_memory(path), 0);
}

TEST(ThisMachine, LooksLikeOne) {
  const tilewise_device_info d = query_cpu();
  EXPECT_EQ(d.kind, TILEWISE_CPU);
  EXPECT_TRUE(d.isa & TILEWISE_ISA_SCALAR);
  EXPECT_TRUE(!(d.isa & TILEWISE_ISA_AVX512) || (d.isa & TILEWISE_ISA_AVX2));
  EXPECT_GE(d.cores, 1);
  EXPECT_NE(d.name[0], '\0');
#if defined(__x86_64__) && defined(__GNUC__)
  EXPECT_EQ((d.isa & TILEWISE_ISA_AVX2) != 0, __builtin_cpu_supports("avx2") &&
                                                  __builtin_cpu_supports("fma") &&
                                                  __builtin_cpu_supports("f16c"));
  EXPECT_EQ((d.isa & TILEWISE_ISA_AVX512) != 0,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl"));
  EXPECT_EQ((d.isa & TILEWISE_ISA_AVX512BF16) != 0,
            (d.isa & TILEWISE_ISA_AVX512) && __builtin_cpu_supports("avx512bf16"));
#endif
  EXPECT_TRUE(d.bf16_dots == 0.0 || (d.isa & TILEWISE_ISA_AVX512BF16));
}

TEST(ThisMachine, SaysHowFastItsBf16DotsAre) {
  constexpr uint64_t kWith = TILEWISE_ISA_AVX2 | TILEWISE_ISA_AVX512 | TILEWISE_ISA_AVX512BF16;
  EXPECT_EQ(bf16_dots_of(kWith, "AuthenticAMD"), 2.0);
  EXPECT_EQ(bf16_dots_of(kWith, "GenuineIntel"), 0.5);
  EXPECT_EQ(bf16_dots_of(kWith, "somebody else"), 0.0);
  EXPECT_EQ(bf16_dots_of(TILEWISE_ISA_AVX2 | TILEWISE_ISA_AVX512, "AuthenticAMD"), 0.0);
}

}  // namespace
}  // namespace tilewise
