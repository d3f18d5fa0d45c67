#include "cuda/sm90/split_plain_launch.cuh"

TILEWISE_SM90_PLAIN(bf16_i8, __nv_bfloat16, int8_t)
