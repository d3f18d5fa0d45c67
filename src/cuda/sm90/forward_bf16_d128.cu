#include "cuda/sm90/forward_launch.cuh"

namespace tilewise::sm90 {

using Row = ForwardRow<ForwardConfig<__nv_bfloat16, 128, 128, 2, 128, 2, 3, 4>,
                       ForwardConfig<__nv_bfloat16, 128, 128, 2, 128, 2, 3, 4, true>>;

}  // namespace tilewise::sm90

TILEWISE_SM90_FORWARD(forward_sm90_bf16_d128_128x128_s2_simple)
