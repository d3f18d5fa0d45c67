#include "cuda/sm80/forward_launch.cuh"

TILEWISE_SM80_FORWARD(forward_sm80_f16_d256_64x64_simple, forward_sm80_f16_d256_64x64_general, __half, 256,
                      256)
