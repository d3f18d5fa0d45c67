// PyTorch has a C++ interface of mangled names only, so it is timed by a Python script, together with this
// library's shared form, in turns and on the same memory.
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>

#include "cli/json.h"
#include "cli/rivals/rival.h"
#include "cli/text.h"

namespace tilewise::cli {
namespace {

namespace fs = std::filesystem;

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Standard output and error of a command, and its exit status.
std::pair<std::string, int> output_of(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return {"it could not be started", 127};
  std::string text;
  char part[4096];
  for (size_t n; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) text.append(part, n);
  const int status = pclose(pipe);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : 127};
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

// Why its flash kernel, or the script, cannot do the problem.
std::string lacks(const Problem& p) {
  if (p.heads_q != p.heads_kv) return "its CPU flash kernel has no grouped heads";
  if (p.head_dim != p.head_dim_v) return "its CPU flash kernel needs head_dim_v = head_dim";
  if (p.seqlen_q != p.seqlen_kv) return "bench/torch_rival.py compares equal lengths only";
  if (p.window_left >= 0 || (p.window_right >= 0 && !p.causal)) return "its CPU flash kernel has no window";
  return "";
}

Expected<ForeignTimes> parse(const std::string& text) {
  ForeignTimes times;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const Json row = Json::parse(text.substr(begin, end - begin), nullptr, false);
    if (!row.is_object() || !row.contains("rival")) continue;
    if (row["rival"].is_null()) {
      times.ours_median_ms = row["ms_median"];
      continue;
    }
    if (row["not_run"].is_string()) return Status(Code::unsupported, row["not_run"].get<std::string>());
    times.what = row["kernel"];
    times.min_ms = row["ms_min"], times.median_ms = row["ms_median"], times.max_ms = row["ms_max"];
    times.repeats = row["repeats"];
  }
  if (times.repeats == 0 || times.ours_median_ms <= 0) return Status(Code::device, last_line(text));
  return times;
}

}  // namespace

Expected<ForeignTimer> find_pytorch(const std::string& folder) {
  const fs::path python = fs::path(folder) / "pytorch", build = fs::path(folder).parent_path();
  const fs::path script = build.parent_path() / "bench/torch_rival.py",
                 library = build / "lib/libtilewise.so";
  std::error_code error;
  if (!fs::exists(python, error))
    return Status(Code::unsupported, "PyTorch is not in build/rivals; `scripts/rivals.sh pytorch` gets it");
  for (const fs::path& file : {script, library})
    if (!fs::exists(file, error)) return Status(Code::unsupported, file.string() + " is not there");
  const std::string start =
      quoted(python.string()) + " " + quoted(script.string()) + " --library " + quoted(library.string());
  return ForeignTimer([start](const Problem& p, bool step, const char* kernel, int threads, int repeats,
                              uint64_t seed) -> Expected<ForeignTimes> {
    if (const std::string why = lacks(p); !why.empty()) return Status(Code::unsupported, why);
    const auto number = [](const char* option, auto value) {
      return std::string(option) + std::to_string(value);
    };
    const char* way = step ? "step" : p.direction == TILEWISE_BACKWARD ? "backward" : "forward";
    const std::string command = start + " --direction " + way + (p.causal ? " --causal" : "") + " --dtype " +
                                name_of(static_cast<DType>(p.dtype_q)) + " --kernel " + quoted(kernel) +
                                number(" --batch ", p.batch) + number(" --heads ", p.heads_q) +
                                number(" --head-dim ", p.head_dim) + number(" --seqlen ", p.seqlen_q) +
                                number(" --threads ", threads) + number(" --seed ", seed) +
                                (repeats > 0 ? number(" --repeats ", repeats) : std::string());
    const auto [text, status] = output_of(command);
    if (status != 0) return Status(Code::device, last_line(text));
    return parse(text);
  });
}

}  // namespace tilewise::cli
