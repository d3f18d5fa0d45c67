// Every CPU row of the kernel table.
#ifndef TILEWISE_CPU_KERNELS_H_
#define TILEWISE_CPU_KERNELS_H_

#include <span>

#include "core/kernel.h"

namespace tilewise {

std::span<const Kernel> cpu_kernels();

}  // namespace tilewise
#endif  // TILEWISE_CPU_KERNELS_H_
