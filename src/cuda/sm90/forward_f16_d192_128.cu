#include "cuda/sm90/forward_launch.cuh"

namespace tilewise::sm90 {

using Row = ForwardRow<ForwardConfig<__half, 192, 128, 2, 112, 2, 2, 3>,
                       ForwardConfig<__half, 192, 128, 2, 96, 2, 2, 3, true>>;

}  // namespace tilewise::sm90

TILEWISE_SM90_FORWARD(forward_sm90_f16_d192_128_128x112_s2_simple)
