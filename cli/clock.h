// The clock that the command times with.
#ifndef TILEWISE_CLI_CLOCK_H_
#define TILEWISE_CLI_CLOCK_H_

#include <chrono>

namespace tilewise::cli {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tilewise::cli

#endif  // TILEWISE_CLI_CLOCK_H_
