// The options of `tilewise info`.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/info.h"

namespace tilewise::cli {

void add_info(CLI::App& parent, int* exit_status) {
  CLI::App* app = parent.add_subcommand("info", "Print version, build, machine and kernels");
  auto json = std::make_shared<bool>(false), kernels = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "one JSON object");
  app->add_flag("--kernels", *kernels, "list every kernel by name");
  app->callback([json, kernels, exit_status] { *exit_status = run_info(*json, *kernels); });
}

}  // namespace tilewise::cli
