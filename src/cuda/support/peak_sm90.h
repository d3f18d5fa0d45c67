// The burst of matrix products by wgmma.
#ifndef TILEWISE_CUDA_SUPPORT_PEAK_SM90_H_
#define TILEWISE_CUDA_SUPPORT_PEAK_SM90_H_

#include <cuda_runtime_api.h>

namespace tilewise::cuda {

double matrix_burst_flops_sm90(int multiprocessors, int rounds);
cudaError_t launch_matrix_burst_sm90(int multiprocessors, int rounds, float* sink, cudaStream_t stream);

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SUPPORT_PEAK_SM90_H_
