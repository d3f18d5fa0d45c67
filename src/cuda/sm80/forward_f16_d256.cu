#include "cuda/sm80/forward_launch.cuh"

namespace tilewise::sm80 {

using Simple = ForwardConfig<__half, 256, 256, 1, 64, false, 2>;
using General = ForwardConfig<__half, 256, 256, 1, 64, true, 2>;

}  // namespace tilewise::sm80

TILEWISE_SM80_FORWARD(forward_sm80_f16_d256_64x64_simple, forward_sm80_f16_d256_64x64_general)
