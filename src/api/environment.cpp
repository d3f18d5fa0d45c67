// The one place that reads TILEWISE_* variables.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "api/border.h"
#include "api/environment.h"
#include "tilewise/c.h"

namespace tilewise {
namespace {

void log_to_stderr(void*, const char* line) { std::fprintf(stderr, "%s\n", line); }

// Unset or empty = not given.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Status read_environment(tilewise_context_options* options, std::string* kernel, std::string* tuning) {
  const auto device = device_of_environment();
  if (!device) return device.status();
  if (*device) {
    options->device_kind = (*device)->kind;
    options->device_index = (*device)->index;
  }
  const std::string threads = variable("TILEWISE_THREADS");
  if (!threads.empty()) {
    const auto [end, bad] =
        std::from_chars(threads.data(), threads.data() + threads.size(), options->threads);
    if (bad != std::errc() || end != threads.data() + threads.size())
      return {Code::invalid,
              cat("TILEWISE_THREADS is \"", threads, "\"; accepted: a number, 0 = physical cores")};
  }
  *kernel = variable("TILEWISE_KERNEL");
  if (!kernel->empty()) options->kernel = kernel->c_str();
  const std::string path = variable("TILEWISE_TUNING");
  if (!path.empty()) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return {Code::invalid, cat("TILEWISE_TUNING is \"", path, "\", which cannot be read")};
    tuning->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    options->tuning_text = tuning->c_str();
  }
  const std::string check = variable("TILEWISE_CHECK");
  if (check != "" && check != "0" && check != "1")
    return {Code::invalid, cat("TILEWISE_CHECK is \"", check, "\"; accepted: 0 or 1")};
  if (!check.empty()) options->check_data = check == "1" ? 1 : 0;
  const std::string log = variable("TILEWISE_LOG");
  if (log == "stderr") {
    options->log = log_to_stderr;
  } else if (!log.empty()) {
    return {Code::invalid, cat("TILEWISE_LOG is \"", log, "\"; accepted: stderr")};
  }
  return {};
}

}  // namespace

Expected<std::optional<Place>> device_of_environment() {
  const std::string given = variable("TILEWISE_DEVICE");
  if (given.empty()) return std::optional<Place>();
  if (given == "cpu") return std::optional(Place());
  Place device{.kind = TILEWISE_CUDA};
  const std::string_view index = std::string_view(given).substr(std::min<size_t>(given.size(), 5));
  const char* end = index.data() + index.size();
  const auto [stop, bad] = std::from_chars(index.data(), end, device.index);
  if (given != "cuda" && (!given.starts_with("cuda:") || bad != std::errc() || stop != end))
    return Status(Code::invalid, cat("TILEWISE_DEVICE is \"", given, "\"; accepted: cpu, cuda, cuda:N"));
  return std::optional(device);
}

}  // namespace tilewise

tilewise_code tilewise_context_from_environment_over(const tilewise_context_options* defaults,
                                                     tilewise_context** context, tilewise_error* error) {
  using namespace tilewise;
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    *context = nullptr;
    tilewise_context_options options;
    tilewise_context_options_init(&options);
    if (defaults) options = *defaults;
    std::string kernel, tuning;
    if (Status s = read_environment(&options, &kernel, &tuning); !s.ok()) return s;
    tilewise_error inner;
    const tilewise_code code = tilewise_context_create(&options, context, &inner);
    return detail::make_status(code, inner);
  });
}

tilewise_code tilewise_context_from_environment(tilewise_context** context, tilewise_error* error) {
  return tilewise_context_from_environment_over(nullptr, context, error);
}
