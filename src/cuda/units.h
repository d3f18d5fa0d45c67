// What the table knows of a row's unit: functions with the row's name. NAME launches; its error is what
// cudaGetLastError says right after. NAME_prepare loads the kernel and sets its limits. NAME_refuses names
// the rule of a call's strides, which no plan knows, that keeps the kernel from the call; null = none. Of
// backward rows there are two more, which touch no device: NAME_cannot names what of a problem the row cannot
// do beside what its columns say (deterministic, say); null = nothing. NAME_scratch is what a call within the
// problem's bounds needs at call.scratch, 256-byte aligned.
#ifndef TILEWISE_CUDA_UNITS_H_
#define TILEWISE_CUDA_UNITS_H_

#include "cuda/call.h"

namespace tilewise::cuda {

#define CUDA_FORWARD(name, ...)                                \
  cudaError_t name(const ForwardParams& p, const Call& call);  \
  cudaError_t name##_prepare(const tilewise_problem& problem); \
  const char* name##_refuses(const ForwardParams& p);
#define CUDA_BACKWARD(name, ...)                               \
  cudaError_t name(const BackwardParams& p, const Call& call); \
  cudaError_t name##_prepare(const tilewise_problem& problem); \
  const char* name##_refuses(const BackwardParams& p);         \
  const char* name##_cannot(const tilewise_problem& problem);  \
  int64_t name##_scratch(const tilewise_problem& problem);
#include "cuda/kernels.def"

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_UNITS_H_
