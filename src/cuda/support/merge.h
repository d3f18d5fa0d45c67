// Launcher of the merge of two parts.
#ifndef TILEWISE_CUDA_SUPPORT_MERGE_H_
#define TILEWISE_CUDA_SUPPORT_MERGE_H_

#include <cuda_runtime_api.h>

#include "core/merge.h"

namespace tilewise::cuda {

cudaError_t launch_merge(const MergeParts& parts, cudaStream_t stream);

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SUPPORT_MERGE_H_
