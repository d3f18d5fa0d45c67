// The result of attend for a person: a short table, the same numbers as --json.
#ifndef TILEWISE_CLI_ATTEND_PRINT_H_
#define TILEWISE_CLI_ATTEND_PRINT_H_

#include <cstdint>
#include <string>

#include "cli/picture.h"

namespace tilewise::cli {

// What a call will take, before anything is allocated.
struct MemoryNeed {
  int64_t inputs = 0, outputs = 0, workspace = 0, verification = 0;
  int64_t total() const { return inputs + outputs + workspace + verification; }
  std::string to_string() const;
  Json to_json(int64_t available) const;
};

void print_result(const Json& result);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_ATTEND_PRINT_H_
