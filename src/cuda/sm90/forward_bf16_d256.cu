#include "cuda/sm90/forward_launch.cuh"

namespace tilewise::sm90 {

extern const ForwardRow kForward_bf16_d256;
const ForwardRow kForward_bf16_d256 = forward_row<ForwardConfig<__nv_bfloat16, 256, 256, 2, 64, 2, 3>,
                                                  ForwardConfig<__nv_bfloat16, 256, 256, 2, 64, 2, 3, true>>(
    "forward_sm90_bf16_d256_128x64_s2_simple");

}  // namespace tilewise::sm90
