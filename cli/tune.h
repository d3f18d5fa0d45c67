// `tilewise tune`: measures every kernel for a list of problems and writes what was fastest to
// tuning/<device>.txt, which TILEWISE_TUNING and ContextOptions::tuning_text read.
#ifndef TILEWISE_CLI_TUNE_H_
#define TILEWISE_CLI_TUNE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tilewise::cli {

struct TuneOptions {
  std::string device = "auto";
  std::vector<std::string> directions{"forward", "backward"}, dtypes{"f32"}, causal{"false", "true"};
  std::vector<int64_t> batch{1}, heads{12}, heads_kv{}, head_dim{64}, seqlen{64, 128, 256, 512, 1024, 2048};
  std::optional<int64_t> tokens;  // batch x seqlen of each length, instead of `batch`
  int64_t threads = 0;
  double seconds = 0.2;  // a kernel and problem
  uint64_t seed = 1;
  std::string output;  // "" = tuning/<device>.txt
  bool dry_run = false;
};

// Adds the subcommand to `parent`; running it stores its exit status.
void add_tune(CLI::App& parent, int* exit_status);
int run_tune(const TuneOptions& options);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_TUNE_H_
