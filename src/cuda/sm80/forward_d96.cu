#include "cuda/sm80/forward_launch.cuh"

TILEWISE_SM80_FORWARD(forward_sm80_bf16_d96_128x64_simple, forward_sm80_bf16_d96_64x64_general, __nv_bfloat16,
                      96, 96)
TILEWISE_SM80_FORWARD(forward_sm80_f16_d96_128x64_simple, forward_sm80_f16_d96_64x64_general, __half, 96, 96)
