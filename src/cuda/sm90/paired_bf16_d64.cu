#include "cuda/sm90/paired_launch.cuh"

TILEWISE_SM90_PAIRED(forward_sm90_bf16_d64_128x128_paired_simple, __nv_bfloat16)
