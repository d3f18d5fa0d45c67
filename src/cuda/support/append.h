// Launcher of appending rows to a cache.
#ifndef TILEWISE_CUDA_SUPPORT_APPEND_H_
#define TILEWISE_CUDA_SUPPORT_APPEND_H_

#include <cuda_runtime_api.h>

#include "core/append.h"

namespace tilewise::cuda {

cudaError_t launch_append(const AppendParams& append, cudaStream_t stream);

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SUPPORT_APPEND_H_
