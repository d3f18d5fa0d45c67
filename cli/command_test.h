// A command of the program in this process: its status, and what it printed.
#ifndef TILEWISE_CLI_COMMAND_TEST_H_
#define TILEWISE_CLI_COMMAND_TEST_H_

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/text.h"

namespace tilewise::cli {

using Json = nlohmann::json;

struct Outcome {
  int status = -1;
  std::string out, err;
  // With --json: an object a line.
  std::vector<Json> rows() const {
    std::vector<Json> parsed;
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) parsed.push_back(Json::parse(line));
    return parsed;
  }
};

// `words` after "tilewise"; add(app, status) adds the commands that there are.
template <typename Add>
Outcome run_command(std::vector<std::string> words, const Add& add) {
  Outcome outcome;
  CLI::App app;
  add(app, &outcome.status);
  std::reverse(words.begin(), words.end());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    outcome.status = kBadInput;
    std::fputs(error.what(), stderr);
  }
  std::fflush(stdout);
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_COMMAND_TEST_H_
