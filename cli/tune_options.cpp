// The options of `tilewise tune`.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/tune.h"

namespace tilewise::cli {

void add_tune(CLI::App& parent, int* exit_status) {
  auto options = std::make_shared<TuneOptions>();
  TuneOptions& o = *options;
  CLI::App* app = parent.add_subcommand("tune", "Measure every kernel and write tuning/<device>.txt");
  app->add_option("--device", o.device, "auto, cpu, cuda[:n]")->capture_default_str();
  app->add_option("--direction", o.directions, "forward, backward (default: both)")->delimiter(',');
  app->add_option("--dtype", o.dtypes, "f32, f16, bf16")->delimiter(',');
  app->add_option("--batch", o.batch, "sequences")->delimiter(',');
  app->add_option("--tokens", o.tokens,
                  "batch x seqlen of each length, instead of --batch: what fills a GPU");
  app->add_option("--heads", o.heads, "query heads")->delimiter(',');
  app->add_option("--heads-kv", o.heads_kv, "key heads (default: --heads)")->delimiter(',');
  app->add_option("--head-dim", o.head_dim, "of q, k and v")->delimiter(',');
  app->add_option("--seqlen", o.seqlen, "queries and keys")->delimiter(',');
  app->add_option("--causal", o.causal, "true, false (default: both)")->delimiter(',');
  app->add_option("--threads", o.threads, "0 = the physical cores that may be used")->capture_default_str();
  app->add_option("--seconds", o.seconds, "for each kernel and problem")->capture_default_str();
  app->add_option("--seed", o.seed, "of the random data")->capture_default_str();
  app->add_option("-o,--output", o.output, "the file (default: tuning/<device>.txt)");
  app->add_flag("--dry-run", o.dry_run, "print the lines, write nothing");
  app->callback([options, exit_status] { *exit_status = run_tune(*options); });
}

}  // namespace tilewise::cli
