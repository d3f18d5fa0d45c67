#include "cuda/sm90/split_plain_launch.cuh"

TILEWISE_SM90_PLAIN(f16, __half, __half)
