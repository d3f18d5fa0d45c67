#include "cpu/units.h"

#define HWY_COMPILE_ONLY_SCALAR
#include "cpu/unit-inl.h"

#include "cpu/table.h"

#define CPU_KERNEL_avx512(...)
#define CPU_KERNEL_avx512bf16(...)
#define CPU_KERNEL_avx2(...)
#define CPU_KERNEL_neon(...)
#define CPU_KERNEL_scalar(...) TILEWISE_CPU_ROWS(__VA_ARGS__)
#define CPU_KERNEL(isa, ...) CPU_KERNEL_##isa(isa, __VA_ARGS__)

namespace tilewise::cpu {

std::span<const Kernel> scalar_kernels() {
  static constexpr Kernel kRows[] = {
#include "cpu/kernels.def"
  };
  return kRows;
}

}  // namespace tilewise::cpu
