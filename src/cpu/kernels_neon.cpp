#include "cpu/units.h"

#include "cpu/unit-inl.h"

namespace tilewise::cpu {
namespace {

constexpr Kernel kKernels[] = {
    forward_row("forward_neon_f32_32x96", Target::neon, DType::f32, 32, 96, HWY_NAMESPACE::Forward),
    forward_row("forward_neon_f16_32x96", Target::neon, DType::f16, 32, 96, HWY_NAMESPACE::Forward),
    forward_row("forward_neon_bf16_32x96", Target::neon, DType::bf16, 32, 96, HWY_NAMESPACE::Forward),
};

}  // namespace

std::span<const Kernel> neon_kernels() { return kKernels; }

}  // namespace tilewise::cpu
