// Files of Linux that say how much of the machine this process may use.
#ifndef TILEWISE_CPU_CGROUP_H_
#define TILEWISE_CPU_CGROUP_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tilewise {

std::string read_text(const std::string& path);  // "" where it cannot be read
std::optional<int64_t> read_number(const std::string& path);

// Calls visit(folder) for the process's cgroup of a controller and each of its parents, v2 and v1: a limit of
// any of them binds.
void visit_cgroups(const std::string& root, const std::string& controller,
                   const std::function<void(const std::string& folder)>& visit);

}  // namespace tilewise
#endif  // TILEWISE_CPU_CGROUP_H_
