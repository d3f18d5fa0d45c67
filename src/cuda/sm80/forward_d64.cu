#include "cuda/sm80/forward_launch.cuh"

TILEWISE_SM80_FORWARD(forward_sm80_bf16_d64_128x128_simple, forward_sm80_bf16_d64_64x64_general,
                      __nv_bfloat16, 64, 64)
TILEWISE_SM80_FORWARD(forward_sm80_f16_d64_128x128_simple, forward_sm80_f16_d64_64x64_general, __half, 64, 64)
