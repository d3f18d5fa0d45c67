#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>

#include "cli/command.h"
#include "cli/memory.h"
#include "cli/text.h"

using namespace tilewise::cli;

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error to report, not a reason to die
  try {
    const int status = run_command(argc, argv);
    std::cout.flush();
    // An earlier write may have failed, with nothing left for the last flush to say.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) || !std::cout)
      return fail("", kBadInput, "the standard output cannot be written; what was printed is not whole");
    return status;
  } catch (const std::bad_alloc&) {
    return fail("", kCannotRun,
                "there is not enough memory; free: " + bytes_text(static_cast<double>(available_memory())));
  } catch (const std::exception& e) {
    return fail("", kCannotRun, e.what());
  }
}
