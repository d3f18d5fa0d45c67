// The tables of the instruction sets that this build holds.
#ifndef TILEWISE_CPU_UNITS_H_
#define TILEWISE_CPU_UNITS_H_

#include <span>

#include "core/kernel.h"

namespace tilewise::cpu {

std::span<const Kernel> scalar_kernels();
std::span<const Kernel> avx2_kernels();
std::span<const Kernel> avx512_kernels();
std::span<const Kernel> avx512bf16_kernels();
std::span<const Kernel> neon_kernels();

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_UNITS_H_
