#include "cuda/sm80/backward_launch.cuh"

TILEWISE_SM80_BACKWARD(backward_sm80_bf16_d96_64x64_simple, backward_sm80_bf16_d96_32x64_general,
                       __nv_bfloat16, 96, 96)
TILEWISE_SM80_BACKWARD(backward_sm80_f16_d96_64x64_simple, backward_sm80_f16_d96_32x64_general, __half, 96,
                       96)
