#include "cuda/sm90/split_plain_launch.cuh"

namespace tilewise::sm90 {

PlainLaunch launch_plain_bf16(const ForwardParams& p, const cuda::Call& call) {
  return PlainHost<__nv_bfloat16>::launch(p, call);
}
cudaError_t prepare_plain_bf16() { return PlainHost<__nv_bfloat16>::prepare(); }

}  // namespace tilewise::sm90
