// `tilewise verify`: random problems, every kernel that does not refuse them, against the fp64 oracle; prints
// the share of the allowance that each used, worst first, and the line that repeats the worst.
#ifndef TILEWISE_CLI_VERIFY_H_
#define TILEWISE_CLI_VERIFY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tilewise::cli {

struct VerifyOptions {
  std::string device = "auto";
  std::vector<std::string> directions{"forward", "backward"};
  std::vector<std::string> kernels{};  // empty = all
  uint64_t seed = 1;
  int64_t count = -1;   // problems; -1 = 200, or without limit where `seconds` is given
  double seconds = -1;  // -1 = no limit
  int scale = 1;        // sizes around 150 rows times this
  std::string line;     // one problem as text instead of random ones
  int64_t threads = 0;
  bool json = false;
};

// Adds the subcommand to `parent`; running it stores its exit status.
void add_verify(CLI::App& parent, int* exit_status);
int run_verify(const VerifyOptions& options);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_VERIFY_H_
