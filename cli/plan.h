// tilewise plan: which kernel would run a problem, and why.
#ifndef TILEWISE_CLI_PLAN_H_
#define TILEWISE_CLI_PLAN_H_

#include <string>

#include "cli/attend.h"
#include "cli/device.h"

namespace CLI {
class App;
}

namespace tilewise::cli {

// As typed; "" = not given.
struct PlanArguments {
  AttendArguments file;  // a file's tensors instead of sizes
  DeviceArguments device;
  std::string direction = "forward", dtype = "f32", cache_dtype = "same", batch = "1", heads = "12", heads_kv,
              head_dim = "64", head_dim_v;
  std::string seqlen, seqlen_kv, page_size = "0", causal, window;
  bool explain = false, json = false;
};

int run_plan(const PlanArguments& arguments);
void add_plan(CLI::App& parent, int* exit_status);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_PLAN_H_
