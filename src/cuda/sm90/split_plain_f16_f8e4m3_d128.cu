#include <cuda_fp8.h>

#include "cuda/sm90/split_plain_launch.cuh"

TILEWISE_SM90_PLAIN(f16_f8e4m3, __half, __nv_fp8_e4m3)
