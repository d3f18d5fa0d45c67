// tilewise attend: attention of the tensors in a file, beside what the three-step form costs.
#ifndef TILEWISE_CLI_ATTEND_H_
#define TILEWISE_CLI_ATTEND_H_

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace tilewise::cli {

// As given on the command line; "" = not given.
struct AttendArguments {
  std::string input, output;
  std::string device = "auto", kernel, layout = "bshd", dtype;
  std::string scale, scale_rows, softcap, dropout, seed;
  std::string causal;  // "bottom-right", "top-left", or "yes": bottom-right unless an offset is given
  std::string q_offset, window;
  std::string threads, max_workspace;
  std::string verify;  // "yes" or "all"
  std::string report, report_sweep;
  bool deterministic = false, grad = false, json = false;
};

int run_attend(const AttendArguments& arguments);
void add_attend(CLI::App& parent, int* exit_status);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_ATTEND_H_
