// tilewise: one subcommand a file; this one only reads the command line.
#ifndef TILEWISE_CLI_COMMAND_H_
#define TILEWISE_CLI_COMMAND_H_

namespace tilewise::cli {

// The exit status.
int run_command(int argc, char** argv);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_COMMAND_H_
