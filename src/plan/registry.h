// Registry: every kernel row that planning may choose from. A value: a context owns one and may add tables to
// it (user score functions, rows made at run time); rows must outlive it.
#ifndef TILEWISE_PLAN_REGISTRY_H_
#define TILEWISE_PLAN_REGISTRY_H_

#include <span>
#include <string_view>
#include <vector>

#include "core/kernel.h"

namespace tilewise {

class Registry {
 public:
  Registry() = default;
  static const Registry& builtin();  // reference, cpu and cuda rows, in that order

  void add(std::span<const Kernel> table);
  std::span<const Kernel* const> rows() const { return rows_; }
  // -1 = no such kernel.
  int find(std::string_view name) const;
  // The row of a plan: `index` where it holds `name`, else by name, else null.
  const Kernel* row(int index, std::string_view name) const;

 private:
  std::vector<const Kernel*> rows_;
};

// The comma-separated names of a forced choice, one a direction.
std::vector<std::string_view> split_names(std::string_view list);
// Every name exists; else a sentence with the known ones.
Status check_names(const Registry& registry, std::string_view list);

}  // namespace tilewise
#endif  // TILEWISE_PLAN_REGISTRY_H_
