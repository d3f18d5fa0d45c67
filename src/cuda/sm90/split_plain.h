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

#define TILEWISE_SM90_PLAIN_DECLARE(name)                                          \
  PlainLaunch launch_plain_##name(const ForwardParams& p, const cuda::Call& call); \
  cudaError_t prepare_plain_##name();
TILEWISE_SM90_PLAIN_DECLARE(bf16)
TILEWISE_SM90_PLAIN_DECLARE(f16)
TILEWISE_SM90_PLAIN_DECLARE(bf16_f8e4m3)
TILEWISE_SM90_PLAIN_DECLARE(bf16_i8)
TILEWISE_SM90_PLAIN_DECLARE(f16_f8e4m3)
TILEWISE_SM90_PLAIN_DECLARE(f16_i8)
#undef TILEWISE_SM90_PLAIN_DECLARE

// A row of the table whose calls go to the plain kernel where it takes them, else to Row.
template <typename Row, auto kLaunch, auto kPrepare>
struct PlainFirst {
  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    const PlainLaunch plain = kLaunch(p, call);
    return plain.taken ? plain.error : Row::launch(p, call);
  }
  static cudaError_t prepare() {
    const cudaError_t error = Row::prepare();
    return error == cudaSuccess ? kPrepare() : error;
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_HOST_H_
