#include "cuda/sm80/standard_launch.cuh"

TILEWISE_SM80_STANDARD(forward_sm80_f16_d64_128x128_standard_simple, __half, 64)
TILEWISE_SM80_STANDARD(forward_sm80_f16_d128_128x128_standard_simple, __half, 128)
