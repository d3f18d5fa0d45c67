// bf16 storage by AVX512-BF16's dot products: compiled as AVX-512, as the forward around them is, and for
// that set alone but for the instructions that pair_products-inl.h names.
#include "cpu/units.h"

#include "hwy/detect_targets.h"
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX3
#include "cpu/unit-inl.h"

HWY_BEFORE_NAMESPACE();
#include "cpu/pair_products-inl.h"
//
#include "cpu/pair_gradients-inl.h"
#include "cpu/pair_small-inl.h"
#include "cpu/row_pairs-inl.h"
HWY_AFTER_NAMESPACE();

#include "cpu/table.h"

#undef TILEWISE_CPU_RUN_forward_fused
#undef TILEWISE_CPU_RUN_forward_rows
#undef TILEWISE_CPU_RUN_backward_fused
#undef TILEWISE_CPU_RUN_forward_small
#undef TILEWISE_CPU_RUN_backward_small
#define TILEWISE_CPU_RUN_forward_fused &HWY_NAMESPACE::PairForward, nullptr
#define TILEWISE_CPU_RUN_forward_rows &HWY_NAMESPACE::PairRowForward, nullptr
#define TILEWISE_CPU_RUN_backward_fused nullptr, &HWY_NAMESPACE::PairBackward
#define TILEWISE_CPU_RUN_forward_small &HWY_NAMESPACE::SmallForward<HWY_NAMESPACE::DotBf16>, nullptr
#define TILEWISE_CPU_RUN_backward_small nullptr, &HWY_NAMESPACE::SmallBackward<HWY_NAMESPACE::DotBf16>

#define CPU_KERNEL_avx512(...)
#define CPU_KERNEL_avx512bf16(isa, op, form, m, n) TILEWISE_CPU_ROW(isa, op, form, bf16, m, n),
#define CPU_KERNEL_avx2(...)
#define CPU_KERNEL_neon(...)
#define CPU_KERNEL_scalar(...)
#define CPU_KERNEL(isa, ...) CPU_KERNEL_##isa(isa, __VA_ARGS__)

namespace tilewise::cpu {

std::span<const Kernel> avx512bf16_kernels() {
  static constexpr Kernel kRows[] = {
#include "cpu/kernels.def"
  };
  return kRows;
}

}  // namespace tilewise::cpu
