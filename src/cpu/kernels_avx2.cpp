#include "cpu/units.h"

#include "hwy/detect_targets.h"
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX2
#include "cpu/unit-inl.h"

namespace tilewise::cpu {
namespace {

constexpr Kernel kKernels[] = {
    forward_row("forward_avx2_f32_32x96", Target::avx2, DType::f32, 32, 96, HWY_NAMESPACE::Forward),
    forward_row("forward_avx2_f16_32x96", Target::avx2, DType::f16, 32, 96, HWY_NAMESPACE::Forward),
    forward_row("forward_avx2_bf16_32x96", Target::avx2, DType::bf16, 32, 96, HWY_NAMESPACE::Forward),
};

}  // namespace

std::span<const Kernel> avx2_kernels() { return kKernels; }

}  // namespace tilewise::cpu
