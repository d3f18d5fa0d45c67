#include "cuda/sm80/forward_f32_launch.cuh"

TILEWISE_SM80_FORWARD_F32(forward_sm80_f32_d64_64x64_simple, 64, 1, 64, 3)
