// tilewise info: version, build, machine, kernels.
#ifndef TILEWISE_CLI_INFO_H_
#define TILEWISE_CLI_INFO_H_

namespace CLI {
class App;
}

namespace tilewise::cli {

int run_info(bool json, bool kernels);
void add_info(CLI::App& parent, int* exit_status);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_INFO_H_
