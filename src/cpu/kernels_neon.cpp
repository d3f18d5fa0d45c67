#include "cpu/units.h"

#include "cpu/unit-inl.h"

#include "cpu/table.h"

#define CPU_KERNEL_avx512(...)
#define CPU_KERNEL_avx512bf16(...)
#define CPU_KERNEL_avx2(...)
#define CPU_KERNEL_neon(...) TILEWISE_CPU_ROWS(__VA_ARGS__)
#define CPU_KERNEL_scalar(...)
#define CPU_KERNEL(isa, ...) CPU_KERNEL_##isa(isa, __VA_ARGS__)

namespace tilewise::cpu {

std::span<const Kernel> neon_kernels() {
  static constexpr Kernel kRows[] = {
#include "cpu/kernels.def"
  };
  return kRows;
}

}  // namespace tilewise::cpu
