#include "cuda/sm90/forward_launch.cuh"

namespace tilewise::sm90 {

extern const ForwardRow kForward_f16_d64;
const ForwardRow kForward_f16_d64 =
    forward_row<ForwardConfig<__half, 64, 64, 3, 128, 2, 6>,
                ForwardConfig<__half, 64, 64, 2, 128, 2, 4, true>>("forward_sm90_f16_d64_192x128_s2_simple");

}  // namespace tilewise::sm90
