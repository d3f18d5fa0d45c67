#include "cuda/sm90/forward_launch.cuh"

namespace tilewise::sm90 {

using Row = ForwardRow<ForwardConfig<__half, 256, 256, 2, 64, 2, 2, 3>,
                       ForwardConfig<__half, 256, 256, 2, 64, 2, 2, 3, true>>;

}  // namespace tilewise::sm90

TILEWISE_SM90_FORWARD(forward_sm90_f16_d256_128x64_s2_simple)
