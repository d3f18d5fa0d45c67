#include "cuda/sm80/forward_launch.cuh"

namespace tilewise::sm80 {

using Simple = ForwardConfig<__nv_bfloat16, 128, 128, 2, 64, false, 2>;
using General = ForwardConfig<__nv_bfloat16, 128, 128, 1, 64, true, 3>;

}  // namespace tilewise::sm80

TILEWISE_SM80_FORWARD(forward_sm80_bf16_d128_128x64_simple, forward_sm80_bf16_d128_64x64_general)
