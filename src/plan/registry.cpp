#include "plan/registry.h"

#include "core/text.h"
#include "cpu/kernels.h"
#include "cuda/kernels.h"
#include "reference/kernels.h"

namespace tilewise {

const Registry& Registry::builtin() {
  static const Registry registry = [] {
    Registry r;
    r.add(reference_kernels());
    r.add(cpu_kernels());
    r.add(cuda_kernels());
    return r;
  }();
  return registry;
}

void Registry::add(std::span<const Kernel> table) {
  for (const Kernel& kernel : table) rows_.push_back(&kernel);
}

int Registry::find(std::string_view name) const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (name == rows_[i]->name) return static_cast<int>(i);
  }
  return -1;
}

const Kernel* Registry::row(int index, std::string_view name) const {
  if (index >= 0 && index < static_cast<int>(rows_.size()) && name == rows_[static_cast<size_t>(index)]->name)
    return rows_[static_cast<size_t>(index)];
  const int found = find(name);
  return found < 0 ? nullptr : rows_[static_cast<size_t>(found)];
}

std::vector<std::string_view> split_names(std::string_view list) {
  std::vector<std::string_view> names;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view name = list.substr(0, comma);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    names.push_back(name);
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return names;
}

Status check_names(const Registry& registry, std::string_view list) {
  for (std::string_view name : split_names(list)) {
    if (registry.find(name) >= 0) continue;
    std::string known;
    for (const Kernel* kernel : registry.rows()) append_listed(known, kernel->name);
    return {Code::invalid,
            cat("kernel \"", name, "\" is not in this library; known: ", known.empty() ? "none" : known)};
  }
  return {};
}

}  // namespace tilewise
