// `tilewise bench`: times planned calls over a grid of problems, in turns with the machine's peak and with
// rivals. The options and the JSON keys (schema 1) are a stable contract: docs/cli.md.
#ifndef TILEWISE_CLI_BENCH_H_
#define TILEWISE_CLI_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tilewise::cli {

// As typed. Every list is an axis of the grid.
struct BenchOptions {
  std::string device = "auto";
  std::vector<std::string> directions{"forward"}, dtypes{"f32"};
  std::vector<std::string> cache_dtypes{"same"};  // of k and v
  std::vector<int64_t> batch{1}, heads{12}, heads_kv{}, head_dim{64}, head_dim_v{}, seqlen{}, seqlen_kv{};
  std::vector<std::string> causal{"false"};
  std::vector<int64_t> window{};      // left, right, left, right...
  std::vector<int64_t> page_size{0};  // of the keys; 0 = not paged
  std::vector<int64_t> threads{0};
  std::vector<std::string> kernels{"auto"};
  bool with_rivals = false;
  std::vector<std::string> rivals{};  // empty = all
  int warmup = -1, repeats = -1;      // -1 = as long as it takes
  uint64_t seed = 1;
  bool json = false, csv = false;
};

// Adds the subcommand to `parent`; running it stores its exit status.
void add_bench(CLI::App& parent, int* exit_status);
int run_bench(const BenchOptions& options);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_BENCH_H_
