#include "cuda/sm80/forward_launch.cuh"

TILEWISE_SM80_FORWARD(forward_sm80_bf16_d192_128_128x64_simple, forward_sm80_bf16_d192_128_64x64_general,
                      __nv_bfloat16, 192, 128)
TILEWISE_SM80_FORWARD(forward_sm80_f16_d192_128_128x64_simple, forward_sm80_f16_d192_128_64x64_general,
                      __half, 192, 128)
