#include "cli/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace tilewise::cli {
namespace {

Status refuse(const std::string& option, const std::string& given, const std::string& accepted) {
  return Status(Code::invalid, option + " was given '" + given + "'; accepted is " + accepted + ".");
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// Three significant digits at least: 1.23, 12.3, 123.
std::string short_number(double value) {
  return printed(value < 9.995 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f", value);
}

}  // namespace

int exit_status(Code code) {
  switch (code) {
    case Code::ok:
      return kDone;
    case Code::invalid:
      return kBadInput;
    case Code::unsupported:
    case Code::out_of_memory:
    case Code::device:
      return kCannotRun;
  }
  return kCannotRun;
}

int fail(const char* command, int status, const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "tilewise%s%s: %s\n", *command ? " " : "", command, message.c_str());
  return status;
}

int fail(const char* command, const Status& status) {
  return fail(command, exit_status(status.code()), status.message());
}

Expected<DType> parse_dtype(const std::string& option, const std::string& text) {
  const std::string t = lower(text);
  if (t == "f32" || t == "fp32" || t == "float32" || t == "float") return DType::f32;
  if (t == "f16" || t == "fp16" || t == "float16" || t == "half") return DType::f16;
  if (t == "bf16" || t == "bfloat16") return DType::bf16;
  return refuse(option, text, "f32, f16 or bf16");
}

Expected<DType> parse_cache_dtype(const std::string& text) {
  if (text == "same") return DType::none;
  if (text == "i8" || text == "int8") return DType::i8;
  if (text == "f8e4m3" || text == "fp8" || text == "float8_e4m3fn") return DType::f8e4m3;
  return Status(Code::invalid, "--cache-dtype is \"" + text + "\"; accepted: same, i8, f8e4m3");
}

Expected<int64_t> parse_bytes(const std::string& option, const std::string& text) {
  const char* accepted = "a size such as 4096, 512k, 512m or 1g (powers of 1024)";
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(number >= 0) || text.find_first_of("xXnN") != std::string::npos)
    return refuse(option, text, accepted);
  const std::string unit = lower(end);
  double factor = 0;
  if (unit.empty() || unit == "b") factor = 1;
  if (unit == "k" || unit == "kb" || unit == "kib") factor = 0x1p10;
  if (unit == "m" || unit == "mb" || unit == "mib") factor = 0x1p20;
  if (unit == "g" || unit == "gb" || unit == "gib") factor = 0x1p30;
  if (unit == "t" || unit == "tb" || unit == "tib") factor = 0x1p40;
  if (factor == 0 || number * factor >= 0x1p62) return refuse(option, text, accepted);
  return static_cast<int64_t>(number * factor);
}

Expected<int64_t> parse_integer(const std::string& option, const std::string& text, int64_t low,
                                int64_t high) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value >= low && value <= high) return value;
  std::string accepted = "a whole number";
  if (low != INT64_MIN) accepted += " from " + std::to_string(low);
  if (high != INT64_MAX) accepted += " to " + std::to_string(high);
  return refuse(option, text, accepted);
}

Expected<double> parse_number(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value)) return refuse(option, text, "a finite number");
  return value;
}

Expected<std::pair<int64_t, int64_t>> parse_window(const std::string& option, const std::string& text) {
  const Status wrong =
      refuse(option, text, "LEFT,RIGHT, two whole numbers from -1 (-1 = unbounded, both ends are inclusive)");
  const size_t comma = text.find(',');
  if (comma == std::string::npos) return wrong;
  const auto left = parse_integer(option, text.substr(0, comma), -1);
  const auto right = parse_integer(option, text.substr(comma + 1), -1);
  if (!left || !right) return wrong;
  return std::pair<int64_t, int64_t>{*left, *right};
}

std::string printed(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

std::string milliseconds_text(double ms) {
  if (ms < 0.9995) return short_number(ms * 1e3) + " us";
  if (ms < 999.5) return short_number(ms) + " ms";
  return short_number(ms / 1e3) + " s";
}

std::string flops_text(double rate) {
  if (rate < 999.5e6) return short_number(rate / 1e6) + " MFLOP/s";
  if (rate < 999.5e9) return short_number(rate / 1e9) + " GFLOP/s";
  return short_number(rate / 1e12) + " TFLOP/s";
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kShown))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > kShown ? "...'" : "'");
}

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t fewest = word.size() / 3 + 2;  // more edits than this are no typing error
  for (const std::string& candidate : known) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < word.size(); ++i) {
      size_t diagonal = row[0]++;
      for (size_t j = 0; j < candidate.size(); ++j) {
        const size_t changed = diagonal + (word[i] != candidate[j] ? 1 : 0);
        diagonal = row[j + 1];
        row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
      }
    }
    if (row.back() < fewest) {
      fewest = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace tilewise::cli
