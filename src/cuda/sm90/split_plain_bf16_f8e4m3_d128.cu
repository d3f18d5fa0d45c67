#include <cuda_fp8.h>

#include "cuda/sm90/split_plain_launch.cuh"

namespace tilewise::sm90 {

PlainLaunch launch_plain_bf16_f8e4m3(const ForwardParams& p, const cuda::Call& call) {
  return PlainHost<__nv_bfloat16, __nv_fp8_e4m3>::launch(p, call);
}
cudaError_t prepare_plain_bf16_f8e4m3() { return PlainHost<__nv_bfloat16, __nv_fp8_e4m3>::prepare(); }

}  // namespace tilewise::sm90
