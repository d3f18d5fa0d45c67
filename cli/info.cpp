#include "cli/info.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "cli/device.h"
#include "cli/memory.h"
#include "cli/picture.h"
#include "cli/text.h"
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

int run_info(bool json, bool kernels) {
  const auto device = Device::choose({});
  if (!device) return fail("info", device.status());
  const DeviceInfo& d = device->info();
  const char* tuning = std::getenv("TILEWISE_TUNING");
  const auto counts = kernel_counts();
  if (json) {
    Json j = {{"schema", 1},
              {"tilewise", tilewise_version()},
              {"build", build_text()},
              {"cpu",
               {{"name", d.name},
                {"cores", d.cores},
                {"isa", isa_text(d.isa)},
                {"l1_bytes", d.l1_bytes},
                {"l2_bytes", d.l2_bytes},
                {"l3_bytes", d.l3_bytes},
                {"memory_bytes", d.memory_bytes},
                {"core_gflops", d.core_gflops},
                {"memory_gbps", d.memory_gbps}}},
              {"threads", device->threads()},
              {"kernels", counts},
              {"tuning", tuning ? Json(tuning) : Json(nullptr)},
              {"cuda", {{"built", false}, {"reason", "built without CUDA"}}}};
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
  std::printf("cuda      built without CUDA\n");
  if (kernels)
    for (const Kernel* row : Registry::builtin().rows()) std::printf("  %s\n", row->name);
  return kDone;
}

}  // namespace

void add_info(CLI::App& parent, int* exit_status) {
  CLI::App* app = parent.add_subcommand("info", "Print version, build, machine and kernels");
  auto json = std::make_shared<bool>(false), kernels = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "one JSON object");
  app->add_flag("--kernels", *kernels, "list every kernel by name");
  app->callback([json, kernels, exit_status] { *exit_status = run_info(*json, *kernels); });
}

}  // namespace tilewise::cli
