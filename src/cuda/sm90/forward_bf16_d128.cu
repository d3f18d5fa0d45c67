#include "cuda/sm90/forward_launch.cuh"

namespace tilewise::sm90 {

extern const ForwardRow kForward_bf16_d128;
const ForwardRow kForward_bf16_d128 = forward_row<ForwardConfig<__nv_bfloat16, 128, 128, 2, 128, 2, 4>,
                                                  ForwardConfig<__nv_bfloat16, 128, 128, 2, 128, 2, 4, true>>(
    "forward_sm90_bf16_d128_128x128_s2_simple");

}  // namespace tilewise::sm90
