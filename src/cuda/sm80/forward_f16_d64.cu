#include "cuda/sm80/forward_launch.cuh"

namespace tilewise::sm80 {

using Simple = ForwardConfig<__half, 64, 64, 2, 128, false, 2>;
using General = ForwardConfig<__half, 64, 64, 1, 64, true, 4>;

}  // namespace tilewise::sm80

TILEWISE_SM80_FORWARD(forward_sm80_f16_d64_128x128_simple, forward_sm80_f16_d64_64x64_general)
