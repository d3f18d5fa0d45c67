#include "cpu/kernels.h"

#include <vector>

#include "cpu/units.h"

namespace tilewise {

std::span<const Kernel> cpu_kernels() {
  static const std::vector<Kernel> table = [] {
    std::vector<Kernel> rows;
    const auto add = [&](std::span<const Kernel> unit) { rows.insert(rows.end(), unit.begin(), unit.end()); };
#if defined(__x86_64__) || defined(_M_X64)
    add(cpu::avx512_kernels());
    add(cpu::avx512bf16_kernels());
    add(cpu::avx2_kernels());
#elif defined(__aarch64__) || defined(_M_ARM64)
    add(cpu::neon_kernels());
#endif
    add(cpu::scalar_kernels());
    return rows;
  }();
  return table;
}

}  // namespace tilewise
