#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/attend.h"
#include "cli/bench.h"
#include "cli/info.h"
#include "cli/plan.h"
#include "cli/text.h"
#include "cli/tune.h"
#include "cli/verify.h"
#include "tilewise/c.h"

namespace tilewise::cli {
namespace {

// --causal and --verify may stand alone, and must not take what follows them.
std::vector<std::string> spelled_out(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool has_files = !words.empty() && (words[0] == "attend" || words[0] == "plan");
  for (size_t i = 0; has_files && i < words.size(); ++i) {
    if (words[i] == "--verify") words[i] += "=yes";
    if (words[i] != "--causal") continue;
    const bool placed =
        i + 1 < words.size() && (words[i + 1] == "bottom-right" || words[i + 1] == "top-left");
    words[i] += "=" + (placed ? words[i + 1] : "yes");
    if (placed) words.erase(words.begin() + static_cast<int64_t>(i) + 1);
  }
  return words;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// What an option takes, as a sentence has it.
std::string accepted_by(const CLI::Option& option) {
  const bool whole =
      option.get_type_name().rfind("INT", 0) == 0 || option.get_type_name().rfind("UINT", 0) == 0;
  const bool number = option.get_type_name().rfind("FLOAT", 0) == 0;
  if (option.get_expected_max() == 0) return "the option alone, without a value";
  const std::string one = whole ? "a whole number" : number ? "a number" : "a value";
  return option.get_delimiter() == ',' ? one + ", or several with commas between them" : one;
}

// "Could not convert: --seqlen = many" and "--window: 1 required INT missing" of CLI11; empty where the error
// is another.
std::string value_error(const CLI::App& command, const std::string& text) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->get_expected_max() == 1 && option->get_delimiter() != ',' && option->count() > 1 &&
        text.rfind(name + ":", 0) == 0)
      return name + " was given " + std::to_string(option->count()) + " times; accepted is once.";
  }
  const std::string unreadable = "Could not convert: ";
  const bool missing = text.find(" required ") != std::string::npos && text.rfind("--", 0) == 0;
  if (!missing && text.rfind(unreadable, 0) != 0) return "";
  const std::string rest = missing ? text : text.substr(unreadable.size());
  const size_t end = rest.find_first_of(": ="), value = rest.find(" = ");
  const CLI::Option* option = command.get_option_no_throw(rest.substr(0, end));
  if (!option) return "";
  const std::string given =
      missing || value == std::string::npos ? "nothing" : "'" + rest.substr(value + 3) + "'";
  return rest.substr(0, end) + " was given " + given + "; accepted is " + accepted_by(*option) + ".";
}

// CLI11's own words where they are a sentence already; ours where they say too little.
int refuse(const CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen[0];
  const std::string value = value_error(command, error.what());
  std::string text = value.empty() ? error.what() : value;
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    const auto extra = app.remaining(true);
    const std::string word = extra.empty() ? "" : extra[0];
    if (chosen.empty() && word.rfind("-", 0) != 0) {
      std::vector<std::string> known;
      std::string list;
      for (const CLI::App* sub : app.get_subcommands({})) {
        known.push_back(sub->get_name());
        list += (list.empty() ? "" : ", ") + sub->get_name();
      }
      const std::string close = nearest(word, known);
      text = "'" + word + "' is no subcommand; accepted is " + list +
             (close.empty() ? "." : " (is it " + close + "?).");
    } else if (word.rfind("-", 0) == 0) {
      const std::string close = nearest(word.substr(0, word.find('=')), option_names(command));
      text = "the option " + word + " is unknown; " + (close.empty() ? "" : "is it " + close + "? ") +
             "tilewise " + (chosen.empty() ? "" : command.get_name() + " ") +
             "--help lists what is accepted.";
    } else {
      text = "the argument '" + word + "' is one too many; tilewise " + command.get_name() +
             " --help lists what is accepted.";
    }
  }
  return fail(chosen.empty() ? "" : command.get_name().c_str(), kBadInput, text);
}

}  // namespace

int run_command(int argc, char** argv) {
  int status = kDone;
  CLI::App app("Exact attention, tile by tile.", "tilewise");
  app.set_version_flag("--version", std::string("tilewise ") + tilewise_version());
  app.require_subcommand(0, 1);
  add_attend(app, &status);
  add_bench(app, &status);
  add_verify(app, &status);
  add_plan(app, &status);
  add_tune(app, &status);
  add_info(app, &status);
  std::vector<std::string> words = spelled_out(argc, argv);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app.parse(words);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    return refuse(app, error);
  }
  if (!app.get_subcommands().empty()) return status;
  std::fputs(app.help().c_str(), stderr);
  return kBadInput;
}

}  // namespace tilewise::cli
