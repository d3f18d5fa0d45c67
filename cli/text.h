// Words to values and back: what every subcommand accepts and prints the same way. A refused value is one
// sentence: the option, what was given, what is accepted.
#ifndef TILEWISE_CLI_TEXT_H_
#define TILEWISE_CLI_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"
#include "tilewise/tensor.h"

namespace tilewise::cli {

// Exit status of every subcommand.
constexpr int kDone = 0, kWrong = 1, kBadInput = 2, kCannotRun = 3;
int exit_status(Code code);

// Prints "tilewise <command>: <message>" to stderr and returns `status`.
int fail(const char* command, int status, const std::string& message);
int fail(const char* command, const Status& status);

Expected<DType> parse_dtype(const std::string& option, const std::string& text);  // f32 f16 bf16, aliases
Expected<DType> parse_cache_dtype(const std::string& text);  // of k and v: same (none), i8, f8e4m3, aliases
Expected<int64_t> parse_bytes(const std::string& option, const std::string& text);  // 4096, 512m, 1g, 1.5GiB
Expected<int64_t> parse_integer(const std::string& option, const std::string& text, int64_t low,
                                int64_t high = INT64_MAX);
Expected<double> parse_number(const std::string& option, const std::string& text);  // finite
Expected<std::pair<int64_t, int64_t>> parse_window(const std::string& option, const std::string& text);

using tilewise::bytes_text;  // "6.1 GiB"
std::string printed(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string milliseconds_text(double ms);         // "1.234 ms", "2.50 s"
std::string flops_text(double flops_per_second);  // "152.3 GFLOP/s"

// A name from a file or a command line, as a terminal may have it: its first 80 bytes, "?" for control bytes.
std::string in_quotes(std::string_view text);

// The closest of `known` within a few edits, or "".
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_TEXT_H_
