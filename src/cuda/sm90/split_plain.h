// The plain split forward, for the rows of sm80/split.cuh on a device that it is built for.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_HOST_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_HOST_H_

#include "cuda/call.h"

namespace tilewise::sm90 {

// Whether it was launched; then with this error.
struct PlainLaunch {
  bool taken = false;
  cudaError_t error = cudaSuccess;
};

PlainLaunch launch_plain_bf16(const ForwardParams& p, const cuda::Call& call);
PlainLaunch launch_plain_f16(const ForwardParams& p, const cuda::Call& call);
PlainLaunch launch_plain_bf16_f8e4m3(const ForwardParams& p, const cuda::Call& call);
cudaError_t prepare_plain_bf16_f8e4m3();
cudaError_t prepare_plain_bf16();
cudaError_t prepare_plain_f16();

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_HOST_H_
