#include "cuda/sm90/forward_launch.cuh"

namespace tilewise::sm90 {

// For lengths of which a tile of 192 queries would waste much.
using Row = ForwardRow<ForwardConfig<__nv_bfloat16, 64, 64, 2, 128, 2, 3, 4>,
                       ForwardConfig<__nv_bfloat16, 64, 64, 2, 128, 2, 3, 4, true>>;

}  // namespace tilewise::sm90

TILEWISE_SM90_FORWARD(forward_sm90_bf16_d64_128x128_s2_simple)
