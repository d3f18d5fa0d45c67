#include "cuda/sm80/forward_launch.cuh"

TILEWISE_SM80_FORWARD(forward_sm80_bf16_d128_128x64_simple, forward_sm80_bf16_d128_64x64_general,
                      __nv_bfloat16, 128, 128)
TILEWISE_SM80_FORWARD(forward_sm80_f16_d128_128x64_simple, forward_sm80_f16_d128_64x64_general, __half, 128,
                      128)
