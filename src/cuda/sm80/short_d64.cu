#include "cuda/sm80/short_launch.cuh"

TILEWISE_SM80_SHORT(forward_sm80_bf16_d64_16x64_short_simple, __nv_bfloat16)
TILEWISE_SM80_SHORT(forward_sm80_f16_d64_16x64_short_simple, __half)
