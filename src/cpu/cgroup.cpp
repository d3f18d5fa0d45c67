#include "cpu/cgroup.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

namespace tilewise {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return {};
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::optional<int64_t> read_number(const std::string& path) {
  const std::string text = read_text(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

namespace {

// A container often sees only its own part of the tree, mounted at the top: climbing ends there in any case.
void climb(const std::string& mount, std::string path,
           const std::function<void(const std::string& folder)>& visit) {
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    visit(mount + path);
    if (path.empty()) return;
    path.erase(path.find_last_of('/'));
  }
}

}  // namespace

void visit_cgroups(const std::string& root, const std::string& controller,
                   const std::function<void(const std::string& folder)>& visit) {
  std::istringstream lines(read_text(root + "/proc/self/cgroup"));
  std::string line;
  while (std::getline(lines, line)) {  // "0::/path" (v2) or "4:cpu,cpuacct:/path" (v1)
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path.empty() || path.front() != '/') continue;
    if (controllers.empty()) {
      climb(root + "/sys/fs/cgroup", path, visit);
      continue;
    }
    if (("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    climb(root + "/sys/fs/cgroup/" + controller, path, visit);
  }
}

}  // namespace tilewise
