#include "cli/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tilewise::cli {
namespace {

// The number behind `key` in a /proc file of "Key:  123 kB" lines, in bytes; -1 = absent.
int64_t kilobytes_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.compare(0, key.size(), key) == 0) return std::atoll(line.c_str() + key.size()) * 1024;
  return -1;
}

// A file that holds one number; -1 for "max" or no file.
int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = -1;
  if (!(file >> value)) return -1;
  return value;
}

// The control group that this process is in, version 2, and every one above it; version 1 at its usual place.
int64_t control_group_leaves() {
  int64_t least = INT64_MAX;
  const auto consider = [&](int64_t limit, int64_t used) {
    if (limit >= 0 && used >= 0) least = std::min(least, std::max<int64_t>(0, limit - used));
  };
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (const size_t at = line.find(":memory:"); at != std::string::npos) {
      const std::string folder = "/sys/fs/cgroup/memory" + line.substr(at + 8);
      consider(number_in(folder + "/memory.limit_in_bytes"), number_in(folder + "/memory.usage_in_bytes"));
    }
    if (line.compare(0, 3, "0::") != 0) continue;
    for (std::string group = line.substr(3);; group.erase(group.rfind('/'))) {
      const std::string folder = "/sys/fs/cgroup" + group;
      consider(number_in(folder + "/memory.max"), number_in(folder + "/memory.current"));
      if (group.empty() || group.rfind('/') == std::string::npos) break;
    }
  }
  consider(number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
           number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes"));
  return least;
}

}  // namespace

int64_t available_memory() {
  int64_t least = INT64_MAX;
  if (const int64_t free = kilobytes_of("/proc/meminfo", "MemAvailable:"); free >= 0) least = free;
  least = std::min(least, control_group_leaves());
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const int64_t used = std::max<int64_t>(0, kilobytes_of("/proc/self/status", "VmSize:"));
    least = std::min(least, std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - used));
  }
  return least;
}

int64_t resident_bytes() { return std::max<int64_t>(0, kilobytes_of("/proc/self/status", "VmRSS:")); }
int64_t peak_resident_bytes() { return std::max<int64_t>(0, kilobytes_of("/proc/self/status", "VmHWM:")); }

bool reset_peak_resident() {
#if defined(__GLIBC__)
  malloc_trim(0);  // what was freed must not pass for what is needed
#endif
  std::FILE* file = std::fopen("/proc/self/clear_refs", "w");
  if (!file) return false;
  const bool written = std::fputs("5", file) >= 0;
  return std::fclose(file) == 0 && written;
}

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  const size_t rounded = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + 63) / 64 * 64;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
}

void Buffer::Free::operator()(std::byte* data) const { std::free(data); }

}  // namespace tilewise::cli
