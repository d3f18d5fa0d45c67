#include "cuda/sm80/backward_launch.cuh"

TILEWISE_SM80_BACKWARD(backward_sm80_bf16_d192_128_64x64_simple, backward_sm80_bf16_d192_128_64x64_general,
                       __nv_bfloat16, 192, 128)
TILEWISE_SM80_BACKWARD(backward_sm80_f16_d192_128_64x64_simple, backward_sm80_f16_d192_128_64x64_general,
                       __half, 192, 128)
