#include "cuda/sm80/backward_launch.cuh"

TILEWISE_SM80_BACKWARD(backward_sm80_bf16_d64_64x128_simple, backward_sm80_bf16_d64_64x64_general,
                       __nv_bfloat16, 64, 64)
TILEWISE_SM80_BACKWARD(backward_sm80_f16_d64_64x128_simple, backward_sm80_f16_d64_64x64_general, __half, 64,
                       64)
