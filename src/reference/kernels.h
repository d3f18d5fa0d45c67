// The oracle as rows of the kernel table: slow, exact, taken only when forced by name or for --device
// reference.
#ifndef TILEWISE_REFERENCE_KERNELS_H_
#define TILEWISE_REFERENCE_KERNELS_H_

#include <span>

#include "core/kernel.h"

namespace tilewise {

// forward_reference_f64, backward_reference_f64: every problem, every dtype (their own `dtype` is none).
std::span<const Kernel> reference_kernels();

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_KERNELS_H_
