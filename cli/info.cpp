#include "cli/info.h"

#include <cstdio>
#include <cstdlib>
#include <map>

#include "cli/device.h"
#include "cli/memory.h"
#include "cli/picture.h"
#include "cli/text.h"
#include "cuda/runtime.h"
#include "plan/planner.h"

namespace tilewise::cli {
namespace {

std::string build_text() {
#if defined(__clang__)
  std::string text = std::string("clang ") + __clang_version__;
#else
  std::string text = std::string("g++ ") + __VERSION__;
#endif
#if defined(__aarch64__)
  text += ", aarch64";
#elif defined(__x86_64__)
  text += ", x86-64";
#endif
#if defined(NDEBUG)
  text += ", assertions off";
#else
  text += ", assertions on";
#endif
  return text;
}

// Rows of the table by instruction set: {"avx2": {"forward": 3, "backward": 2}}.
std::map<std::string, std::map<std::string, int>> kernel_counts() {
  std::map<std::string, std::map<std::string, int>> counts;
  for (const Kernel* row : Registry::builtin().rows())
    ++counts[name_of(row->target)][row->op == Op::backward ? "backward" : "forward"];
  return counts;
}

std::vector<DeviceInfo> cuda_devices() {
  std::vector<DeviceInfo> devices;
  const auto count = cuda::device_count();
  for (int i = 0; count && i < *count; ++i)
    if (auto device = DeviceInfo::query(TILEWISE_CUDA, i)) devices.push_back(*device);
  return devices;
}

Json cuda_json() {
  Json j = object({{"built", cuda::built()}});
  if (!cuda::built()) {
    j["reason"] = cuda::toolkit_text();
    return j;
  }
  j["toolkit"] = cuda::toolkit_text();
  j["driver_needed"] = cuda::version_text(cuda::driver_needed());
  j["driver_found"] = cuda::driver_found() ? Json(cuda::version_text(cuda::driver_found())) : Json(nullptr);
  if (const auto count = cuda::device_count(); !count) j["reason"] = count.status().message();
  j["devices"] = Json::array();
  for (const DeviceInfo& d : cuda_devices())
    j["devices"].push_back(object(
        {{"name", d.name},
         {"multiprocessors", d.cores},
         {"compute_capability", printed("%d.%d", static_cast<int>(d.isa / 10), static_cast<int>(d.isa % 10))},
         {"shared_bytes", d.l1_bytes},
         {"l2_bytes", d.l2_bytes},
         {"memory_bytes", d.memory_bytes},
         {"core_gflops", d.core_gflops},
         {"memory_gbps", d.memory_gbps}}));
  return j;
}

void print_cuda() {
  if (!cuda::built()) {
    std::printf("cuda      %s\n", cuda::toolkit_text().c_str());
    return;
  }
  const int found = cuda::driver_found();
  std::printf("cuda      built with %s; driver needed: CUDA %s, found: %s\n", cuda::toolkit_text().c_str(),
              cuda::version_text(cuda::driver_needed()).c_str(),
              found ? ("CUDA " + cuda::version_text(found)).c_str() : "none");
  const auto count = cuda::device_count();
  if (!count) std::printf("          %s\n", count.status().message().c_str());
  for (const DeviceInfo& d : cuda_devices())
    std::printf("cuda:%-4d %s, %s free, L2 %s, %.0f GB/s\n", d.index, device_text(d).c_str(),
                bytes_text(static_cast<double>(d.memory_bytes)).c_str(),
                bytes_text(static_cast<double>(d.l2_bytes)).c_str(), d.memory_gbps);
}

}  // namespace

int run_info(bool json, bool kernels) {
  DeviceArguments cpu;
  cpu.device = "cpu";
  const auto device = Device::choose(cpu);
  if (!device) return fail("info", device.status());
  const DeviceInfo& d = device->info();
  const char* tuning = std::getenv("TILEWISE_TUNING");
  const auto counts = kernel_counts();
  if (json) {
    Json j = object({{"schema", 1},
                     {"tilewise", tilewise_version()},
                     {"build", build_text()},
                     {"cpu", object({{"name", d.name},
                                     {"cores", d.cores},
                                     {"isa", isa_text(d.isa)},
                                     {"l1_bytes", d.l1_bytes},
                                     {"l2_bytes", d.l2_bytes},
                                     {"l3_bytes", d.l3_bytes},
                                     {"memory_bytes", d.memory_bytes},
                                     {"core_gflops", d.core_gflops},
                                     {"bf16_dots", d.bf16_dots},
                                     {"memory_gbps", d.memory_gbps}})},
                     {"threads", device->threads()},
                     {"kernels", counts},
                     {"tuning", tuning ? Json(tuning) : Json(nullptr)},
                     {"cuda", cuda_json()}});
    if (kernels) {
      j["kernel_names"] = Json::array();
      for (const Kernel* row : Registry::builtin().rows()) j["kernel_names"].push_back(row->name);
    }
    std::printf("%s\n", j.dump().c_str());
    return kDone;
  }
  const auto bytes = [](int64_t n) { return bytes_text(static_cast<double>(n)); };
  std::printf("tilewise  %s\n", tilewise_version());
  std::printf("build     %s\n", build_text().c_str());
  std::printf("cpu       %s, %d cores that may be used\n", d.name, d.cores);
  std::printf("isa       %s\n", isa_text(d.isa).c_str());
  std::printf("caches    L1 %s, L2 %s a core, L3 %s\n", bytes(d.l1_bytes).c_str(), bytes(d.l2_bytes).c_str(),
              bytes(d.l3_bytes).c_str());
  std::printf("memory    %s free\n", bytes(available_memory()).c_str());
  std::printf("threads   %d\n", device->threads());
  std::string text;
  for (const auto& [target, ops] : counts) {
    text += (text.empty() ? "" : "; ") + target;
    for (const auto& [op, n] : ops) text += " " + std::to_string(n) + " " + op;
  }
  std::printf("kernels   %s\n", text.c_str());
  std::printf("tuning    %s\n",
              tuning ? tuning : "none (TILEWISE_TUNING names a file; tilewise tune makes one)");
  print_cuda();
  if (kernels)
    for (const Kernel* row : Registry::builtin().rows()) std::printf("  %s\n", row->name);
  return kDone;
}

}  // namespace tilewise::cli
