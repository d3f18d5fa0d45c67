#include "cuda/sm80/backward_launch.cuh"

TILEWISE_SM80_BACKWARD(backward_sm80_bf16_d256_32x64_simple, backward_sm80_bf16_d256_32x64_general,
                       __nv_bfloat16, 256, 256)
TILEWISE_SM80_BACKWARD(backward_sm80_f16_d256_32x64_simple, backward_sm80_f16_d256_32x64_general, __half, 256,
                       256)
