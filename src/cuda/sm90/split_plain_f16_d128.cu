#include "cuda/sm90/split_plain_launch.cuh"

namespace tilewise::sm90 {

PlainLaunch launch_plain_f16(const ForwardParams& p, const cuda::Call& call) {
  return PlainHost<__half>::launch(p, call);
}
cudaError_t prepare_plain_f16() { return PlainHost<__half>::prepare(); }

}  // namespace tilewise::sm90
