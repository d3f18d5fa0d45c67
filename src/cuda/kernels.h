// Every CUDA row of the kernel table; none where this build has no CUDA code.
#ifndef TILEWISE_CUDA_KERNELS_H_
#define TILEWISE_CUDA_KERNELS_H_

#include <span>

#include "core/kernel.h"

namespace tilewise {

std::span<const Kernel> cuda_kernels();

}  // namespace tilewise
#endif  // TILEWISE_CUDA_KERNELS_H_
