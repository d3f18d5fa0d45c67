#include "cpu/units.h"

#include "hwy/detect_targets.h"
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX3
#include "cpu/unit-inl.h"

namespace tilewise::cpu {
namespace {

constexpr Kernel kKernels[] = {
    forward_row("forward_avx512_f32_64x96", Target::avx512, DType::f32, 64, 96, HWY_NAMESPACE::Forward),
    forward_row("forward_avx512_f16_64x96", Target::avx512, DType::f16, 64, 96, HWY_NAMESPACE::Forward),
    forward_row("forward_avx512_bf16_64x96", Target::avx512, DType::bf16, 64, 96, HWY_NAMESPACE::Forward),
};

}  // namespace

std::span<const Kernel> avx512_kernels() { return kKernels; }

}  // namespace tilewise::cpu
