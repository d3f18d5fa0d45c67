#include "cuda/sm90/forward_launch.cuh"

namespace tilewise::sm90 {

using Row = ForwardRow<ForwardConfig<__nv_bfloat16, 256, 256, 2, 64, 2, 2, 3>,
                       ForwardConfig<__nv_bfloat16, 256, 256, 2, 64, 2, 2, 3, true>>;

}  // namespace tilewise::sm90

TILEWISE_SM90_FORWARD(forward_sm90_bf16_d256_128x64_s2_simple)
