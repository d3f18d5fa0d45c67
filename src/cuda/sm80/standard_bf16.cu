#include "cuda/sm80/standard_launch.cuh"

TILEWISE_SM80_STANDARD(forward_sm80_bf16_d64_128x128_standard_simple, __nv_bfloat16, 64)
TILEWISE_SM80_STANDARD(forward_sm80_bf16_d128_128x128_standard_simple, __nv_bfloat16, 128)
