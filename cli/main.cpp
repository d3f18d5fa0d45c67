#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "cli/command.h"
#include "cli/text.h"

using namespace tilewise::cli;

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error to report, not a reason to die
  try {
    const int status = run_command(argc, argv);
    if (std::fflush(stdout) != 0) return fail("", kCannotRun, "the standard output cannot be written");
    return status;
  } catch (const std::bad_alloc&) {
    return fail("", kCannotRun, "there is not enough memory");
  } catch (const std::exception& e) {
    return fail("", kCannotRun, e.what());
  }
}
