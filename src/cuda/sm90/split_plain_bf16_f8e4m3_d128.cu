#include <cuda_fp8.h>

#include "cuda/sm90/split_plain_launch.cuh"

TILEWISE_SM90_PLAIN(bf16_f8e4m3, __nv_bfloat16, __nv_fp8_e4m3)
