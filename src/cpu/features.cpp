#include "cpu/features.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "core/text.h"
#include "cpu/cgroup.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/auxv.h>
#endif

namespace tilewise {
namespace {

#if defined(__x86_64__)
uint64_t enabled_state() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}
#endif

// CPUs that this process may run on.
std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  // The kernel's mask may be wider than cpu_set_t: ask with growing sets.
  for (int size = CPU_SETSIZE; size <= 1 << 20; size *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    CPU_ZERO_S(bytes, set);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    for (int i = 0; ok && i < size; ++i) {
      if (CPU_ISSET_S(static_cast<size_t>(i), bytes, set)) cpus.push_back(i);
    }
    CPU_FREE(set);
    if (ok) break;
  }
#endif
  if (cpus.empty()) {
    const int n = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    for (int i = 0; i < n; ++i) cpus.push_back(i);
  }
  return cpus;
}

// The value after "key :" in /proc/cpuinfo.
std::string cpuinfo_field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    if (start != std::string::npos) return line.substr(start);
  }
  return {};
}

double clock_ghz(const std::string& root, const std::string& cpuinfo) {
  if (auto khz = read_number(root + "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"); khz && *khz > 0)
    return static_cast<double>(*khz) * 1e-6;
  const std::string mhz = cpuinfo_field(cpuinfo, "cpu MHz");
  double value = 0;
  std::from_chars(mhz.data(), mhz.data() + mhz.size(), value);
  return value > 100.0 ? value * 1e-3 : 2.0;
}

// fp32 operations a cycle, a fused multiply-add counting two: two pipes wherever the set has vectors.
double operations_a_cycle(uint64_t isa) {
  if (isa & TILEWISE_ISA_AVX512) return 64.0;
  if (isa & TILEWISE_ISA_AVX2) return 32.0;
  if (isa & TILEWISE_ISA_NEON) return 16.0;
  return 4.0;
}

// As CPUID has it: "AuthenticAMD", "GenuineIntel"; empty elsewhere.
std::string cpu_vendor() {
#if defined(__x86_64__)
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return {};
  char name[13] = {};
  std::memcpy(name, &b, 4);
  std::memcpy(name + 4, &d, 4);
  std::memcpy(name + 8, &c, 4);
  return name;
#else
  return {};
#endif
}

// "48K", "2048K", "32M" as sysfs writes it.
int64_t size_of_text(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return 0;
  const char unit = end < text.data() + text.size() ? *end : ' ';
  return unit == 'K' ? value << 10 : unit == 'M' ? value << 20 : unit == 'G' ? value << 30 : value;
}

void read_caches(const std::string& root, tilewise_device_info* device) {
  device->l1_bytes = 32 << 10;
  device->l2_bytes = 512 << 10;
  device->l3_bytes = 4 << 20;
  for (int i = 0; i < 8; ++i) {
    const std::string folder = cat(root, "/sys/devices/system/cpu/cpu0/cache/index", i, "/");
    const int64_t bytes = size_of_text(read_text(folder + "size"));
    const int64_t level = read_number(folder + "level").value_or(0);
    if (bytes <= 0 || read_text(folder + "type").starts_with("Instruction")) continue;
    if (level == 1) device->l1_bytes = bytes;
    if (level == 2) device->l2_bytes = bytes;
    if (level == 3) device->l3_bytes = bytes;
  }
}

}  // namespace

uint64_t cpu_isa() {
  uint64_t isa = TILEWISE_ISA_SCALAR;
#if defined(__x86_64__)
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return isa;
  const bool fma = c & (1u << 12), osxsave = c & (1u << 27), avx = c & (1u << 28), f16c = c & (1u << 29);
  if (!osxsave || !avx || (enabled_state() & 0x6) != 0x6) return isa;  // xmm and ymm saved on a switch
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return isa;
  const bool avx2 = b & (1u << 5);
  if (avx2 && fma && f16c) isa |= TILEWISE_ISA_AVX2;
  constexpr uint32_t kAvx512 =
      (1u << 16) | (1u << 17) | (1u << 28) | (1u << 30) | (1u << 31);  // F DQ CD BW VL
  if ((isa & TILEWISE_ISA_AVX2) && (b & kAvx512) == kAvx512 && (enabled_state() & 0xe6) == 0xe6)
    isa |= TILEWISE_ISA_AVX512;
  const bool has_leaf1 = a >= 1;
  if ((isa & TILEWISE_ISA_AVX512) && has_leaf1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5)))
    isa |= TILEWISE_ISA_AVX512BF16;
#elif defined(__aarch64__)
#if defined(__linux__)
  constexpr unsigned long kAsimd = 1ul << 1;  // HWCAP_ASIMD
  if (getauxval(AT_HWCAP) & kAsimd) isa |= TILEWISE_ISA_NEON;
#else
  isa |= TILEWISE_ISA_NEON;
#endif
#endif
  return isa;
}

bool halves_avx512() {
#if defined(__x86_64__)
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (cpu_vendor() != "AuthenticAMD" || !__get_cpuid(1, &a, &b, &c, &d)) return false;
  const uint32_t family = ((a >> 8) & 0xf) + ((a >> 20) & 0xff);
  return family == 0x19 && (cpu_isa() & TILEWISE_ISA_AVX512) != 0;
#else
  return false;
#endif
}

// Not measured when asked, because what is planned must follow from the machine and not from the moment: a
// call's bits depend on its kernel. vdpbf16ps against fp32 multiply-adds, both of 512 bits, one core:
// 234.8 and 117.4 GFLOP/s on Zen 4; 86 and 174 on an Emerald Rapids, where the matrix unit (AMX) is what bf16
// is meant for. Zen 5 doubles both; Cooper Lake was not measured.
double bf16_dots_of(uint64_t isa, std::string_view vendor) {
  if (!(isa & TILEWISE_ISA_AVX512BF16)) return 0.0;
  if (vendor == "AuthenticAMD") return 2.0;
  if (vendor == "GenuineIntel") return 0.5;
  return 0.0;
}

double cgroup_cpu_quota(const std::string& root) {
  double least = 0;
  auto bind = [&](double quota, double period) {
    if (quota > 0 && period > 0 && (least == 0 || quota / period < least)) least = quota / period;
  };
  visit_cgroups(root, "cpu", [&](const std::string& folder) {
    long long quota = 0, period = 0;
    if (std::sscanf(read_text(folder + "/cpu.max").c_str(), "%lld %lld", &quota, &period) == 2)
      bind(static_cast<double>(quota), static_cast<double>(period));
    bind(static_cast<double>(read_number(folder + "/cpu.cfs_quota_us").value_or(0)),
         static_cast<double>(read_number(folder + "/cpu.cfs_period_us").value_or(0)));
  });
  return least;
}

int usable_cores(const std::string& root) {
  std::set<std::pair<int64_t, int64_t>> cores;
  int unknown = 0;
  for (int cpu : allowed_cpus()) {
    const std::string folder = cat(root, "/sys/devices/system/cpu/cpu", cpu, "/topology/");
    const auto core = read_number(folder + "core_id"), package = read_number(folder + "physical_package_id");
    if (core && package) {
      cores.insert({*package, *core});
    } else {
      ++unknown;
    }
  }
  int n = std::max(1, static_cast<int>(cores.size()) + unknown);
  const double quota = cgroup_cpu_quota(root);
  if (quota > 0) n = std::min(n, std::max(1, static_cast<int>(std::floor(quota + 1e-6))));
  return n;
}

int64_t available_memory(const std::string& root) {
  int64_t least = -1;
  auto bind = [&](int64_t bytes) {
    if (bytes >= 0 && (least < 0 || bytes < least)) least = bytes;
  };
  long long kib = 0;
  const std::string meminfo = read_text(root + "/proc/meminfo");
  if (const size_t at = meminfo.find("MemAvailable:");
      at != std::string::npos && std::sscanf(meminfo.c_str() + at, "MemAvailable: %lld", &kib) == 1)
    bind(kib * 1024);
  visit_cgroups(root, "memory", [&](const std::string& folder) {
    // Page cache that can be dropped counts as used: give it back.
    const std::string stat = read_text(folder + "/memory.stat");
    auto free_below = [&](const char* limit, const char* used, const char* cache) {
      const auto most = read_number(folder + "/" + limit), now = read_number(folder + "/" + used);
      if (!most || !now) return;
      long long droppable = 0;
      const size_t at = ("\n" + stat).find(std::string("\n") + cache + " ");
      if (at != std::string::npos) std::sscanf(stat.c_str() + at + std::strlen(cache), "%lld", &droppable);
      bind(std::max<int64_t>(0, *most - *now + droppable));
    };
    free_below("memory.max", "memory.current", "inactive_file");
    free_below("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
  });
  return least;
}

tilewise_device_info query_cpu(const std::string& root) {
  tilewise_device_info device{};
  device.struct_bytes = sizeof device;
  device.kind = TILEWISE_CPU;
  device.cores = usable_cores(root);
  device.isa = cpu_isa();
  read_caches(root, &device);
  device.memory_bytes = std::max<int64_t>(0, available_memory(root));
  const std::string cpuinfo = read_text(root + "/proc/cpuinfo");
  device.core_gflops = clock_ghz(root, cpuinfo) * operations_a_cycle(device.isa);
  device.bf16_dots = bf16_dots_of(device.isa, cpu_vendor());
  device.memory_gbps = std::min(12.0 * device.cores, 200.0);  // a guess: what one core of a server draws
  std::string name = cpuinfo_field(cpuinfo, "model name");
  if (name.empty()) name = cpuinfo_field(cpuinfo, "Hardware");
  if (name.empty()) name = cpuinfo_field(cpuinfo, "Model");
  copy_text(name.empty() ? "CPU" : name, device.name, sizeof device.name);
  return device;
}

}  // namespace tilewise
