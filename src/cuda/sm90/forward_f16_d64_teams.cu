#include "cuda/sm90/forward_teams_launch.cuh"

TILEWISE_SM90_FORWARD_TEAMS(forward_sm90_f16_d64_128x64_t2_simple, __half, 64, 2, 2, 64, 4)
