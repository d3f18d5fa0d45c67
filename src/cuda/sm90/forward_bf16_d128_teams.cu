#include "cuda/sm90/forward_teams_launch.cuh"

TILEWISE_SM90_FORWARD_TEAMS(forward_sm90_bf16_d128_128x64_t1_simple, __nv_bfloat16, 128, 1, 2, 64, 4)
