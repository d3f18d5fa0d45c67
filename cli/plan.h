// tilewise plan: which kernel would run a problem, and why.
#ifndef TILEWISE_CLI_PLAN_H_
#define TILEWISE_CLI_PLAN_H_

namespace CLI {
class App;
}

namespace tilewise::cli {

void add_plan(CLI::App& parent, int* exit_status);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_PLAN_H_
