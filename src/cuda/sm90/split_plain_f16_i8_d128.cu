#include "cuda/sm90/split_plain_launch.cuh"

TILEWISE_SM90_PLAIN(f16_i8, __half, int8_t)
