// What the table knows of a row's unit: three functions with the row's name. NAME launches; its error is what
// cudaGetLastError says right after. NAME_prepare loads the kernel and sets its limits. NAME_refuses names
// the rule of a call's strides, which no plan knows, that keeps the kernel from the call; null = none.
#ifndef TILEWISE_CUDA_UNITS_H_
#define TILEWISE_CUDA_UNITS_H_

#include <cuda_runtime_api.h>

#include "core/params.h"

namespace tilewise::cuda {

struct Call {
  cudaStream_t stream = nullptr;
  void* control = nullptr;  // TILEWISE_CONTROL_BYTES, zero on entry, left zero
  void* scratch = nullptr;  // undefined on entry
  int num_splits = 0;       // the plan's
  int multiprocessors = 0;
};

#define CUDA_FORWARD(name, ...)                                \
  cudaError_t name(const ForwardParams& p, const Call& call);  \
  cudaError_t name##_prepare(const tilewise_problem& problem); \
  const char* name##_refuses(const ForwardParams& p);
#include "cuda/kernels.def"
#undef CUDA_FORWARD

#define CUDA_SPLIT(name, ...)                                  \
  cudaError_t name(const ForwardParams& p, const Call& call);  \
  cudaError_t name##_prepare(const tilewise_problem& problem); \
  const char* name##_refuses(const ForwardParams& p);
#include "cuda/split_kernels.def"
#undef CUDA_SPLIT

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_UNITS_H_
