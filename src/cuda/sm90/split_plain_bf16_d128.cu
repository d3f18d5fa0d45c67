#include "cuda/sm90/split_plain_launch.cuh"

TILEWISE_SM90_PLAIN(bf16, __nv_bfloat16, __nv_bfloat16)
