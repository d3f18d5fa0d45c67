#include "cuda/sm90/forward_blocks_launch.cuh"

TILEWISE_SM90_FORWARD_BLOCKS(forward_sm90_bf16_d64_64x64_b5_simple, __nv_bfloat16, 1, false, 64, 2, 5)
TILEWISE_SM90_FORWARD_BLOCKS(forward_sm90_bf16_d64_128x128_b2_simple, __nv_bfloat16, 2, false, 128, 2, 2)
TILEWISE_SM90_FORWARD_BLOCKS(forward_sm90_bf16_d64_64x128_b4_simple, __nv_bfloat16, 1, false, 128, 1, 4)
TILEWISE_SM90_FORWARD_BLOCKS(forward_sm90_bf16_d64_64x128_k2_simple, __nv_bfloat16, 2, true, 128, 1, 2)
