#include "cpu/units.h"

#define HWY_COMPILE_ONLY_SCALAR
#include "cpu/unit-inl.h"

namespace tilewise::cpu {
namespace {

constexpr Kernel kKernels[] = {
    forward_row("forward_scalar_f32_16x96", Target::scalar, DType::f32, 16, 96, HWY_NAMESPACE::Forward),
    forward_row("forward_scalar_f16_16x96", Target::scalar, DType::f16, 16, 96, HWY_NAMESPACE::Forward),
    forward_row("forward_scalar_bf16_16x96", Target::scalar, DType::bf16, 16, 96, HWY_NAMESPACE::Forward),
};

}  // namespace

std::span<const Kernel> scalar_kernels() { return kKernels; }

}  // namespace tilewise::cpu
