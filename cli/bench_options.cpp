// The options of `tilewise bench`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/bench.h"
#include "cli/bench_grid.h"

namespace tilewise::cli {

void add_bench(CLI::App& parent, int* exit_status) {
  auto options = std::make_shared<BenchOptions>();
  BenchOptions& o = *options;
  CLI::App* app =
      parent.add_subcommand("bench", "Time attention over a grid of problems, beside peak and rivals");
  app->add_option("--device", o.device, "auto, cpu, cuda[:n], reference")->capture_default_str();
  app->add_option("--direction", o.directions, "forward, backward, step (both, in turn), decode")
      ->delimiter(',');
  app->add_option("--dtype", o.dtypes, "f32, f16, bf16 and their other names")->delimiter(',');
  app->add_option("--cache-dtype", o.cache_dtypes, "of k and v: same, i8 or f8e4m3; forward and decode")
      ->delimiter(',');
  app->add_option("--batch", o.batch, "sequences")->delimiter(',');
  app->add_option("--heads", o.heads, "query heads")->delimiter(',');
  app->add_option("--heads-kv", o.heads_kv, "key heads (default: as many as query heads)")->delimiter(',');
  app->add_option("--head-dim", o.head_dim, "of q and k")->delimiter(',');
  app->add_option("--head-dim-v", o.head_dim_v, "of v and o (default: --head-dim)")->delimiter(',');
  app->add_option("--seqlen", o.seqlen, "queries a sequence (default: 1024; decode: 1)")->delimiter(',');
  app->add_option("--seqlen-kv", o.seqlen_kv, "keys a sequence (default: --seqlen; decode: 4096)")
      ->delimiter(',');
  app->add_option("--causal", o.causal, "alone: true; or a list of true, false, bottom-right, top-left")
      ->delimiter(',')
      ->expected(0, 8)
      ->default_str("true");
  app->add_option("--window", o.window,
                  "LEFT,RIGHT around each query's position, -1 = unbounded; more pairs for a grid")
      ->delimiter(',');
  app->add_option("--page-size", o.page_size, "rows of a page of the keys, in random order; 0 = not paged")
      ->delimiter(',');
  app->add_option("--threads", o.threads, "0 = the physical cores that may be used")->delimiter(',');
  app->add_option("--kernel", o.kernels, "auto, all, or names of kernels")->delimiter(',');
  app->add_option("--rivals", o.rivals, "time rivals too: alone all of them, or a list")
      ->delimiter(',')
      ->expected(0, 8)
      ->default_str("all");
  app->add_option("--warmup", o.warmup, "calls of each before the first sample (default: 20 ms)");
  app->add_option("--repeats", o.repeats, "samples of each (default: by time, 3 to 101)");
  app->add_option("--seed", o.seed, "of the random data")->capture_default_str();
  app->add_flag("--json", o.json, "one object a line");
  app->add_flag("--csv", o.csv, "comma-separated, with a header");
  app->callback([app, options, exit_status] {
    options->with_rivals = app->count("--rivals") > 0;
    std::erase(options->rivals, "all");
    *exit_status = run_bench(*options);
  });
}

}  // namespace tilewise::cli
