// The options of `tilewise verify`.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/verify.h"

namespace tilewise::cli {

void add_verify(CLI::App& parent, int* exit_status) {
  auto options = std::make_shared<VerifyOptions>();
  VerifyOptions& o = *options;
  CLI::App* app =
      parent.add_subcommand("verify", "Hold every kernel against the fp64 oracle on random problems");
  app->add_option("--device", o.device, "auto, cpu, cuda[:n], reference")->capture_default_str();
  app->add_option("--direction", o.directions, "forward, backward (default: both)")->delimiter(',');
  app->add_option("--kernel", o.kernels, "only these")->delimiter(',');
  app->add_option("--seed", o.seed, "of the first problem; each next one adds 1")->capture_default_str();
  app->add_option("--count", o.count, "problems (default: 200, or as --seconds allows)");
  app->add_option("--seconds", o.seconds, "stop after this time");
  app->add_option("--scale", o.scale, "1: up to about 150 rows; n: n times as many")->capture_default_str();
  app->add_option("--case", o.line, "this problem instead of random ones (tests/cases/README.md)");
  app->add_option("--threads", o.threads, "0 = the physical cores that may be used")->capture_default_str();
  app->add_flag("--json", o.json, "one object a kernel");
  app->callback([options, exit_status] { *exit_status = run_verify(*options); });
}

}  // namespace tilewise::cli
