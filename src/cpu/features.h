// What this machine is: instruction sets, caches, cores that may be used, memory that is free. Reads the
// files of Linux under `root` (tests bring their own tree) and falls back to modest figures, never to 0.
#ifndef TILEWISE_CPU_FEATURES_H_
#define TILEWISE_CPU_FEATURES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "tilewise/c.h"

namespace tilewise {

// tilewise_isa bits that processor and operating system support both.
uint64_t cpu_isa();
// AVX-512 runs as two halves of 256 bits, one multiply-add a cycle: Zen 4.
bool halves_avx512();

// tilewise_device_info::bf16_dots of a processor with these bits, by its maker's name in CPUID.
double bf16_dots_of(uint64_t isa, std::string_view vendor);

// Physical cores within the affinity mask, within the cgroup's CPU quota (v1 and v2); at least 1.
int usable_cores(const std::string& root = "");
// CPUs that the cgroup's quota allows; 0 = no quota.
double cgroup_cpu_quota(const std::string& root = "");
// MemAvailable, within what the cgroup still allows; -1 = unknown.
int64_t available_memory(const std::string& root = "");

tilewise_device_info query_cpu(const std::string& root = "");

}  // namespace tilewise
#endif  // TILEWISE_CPU_FEATURES_H_
