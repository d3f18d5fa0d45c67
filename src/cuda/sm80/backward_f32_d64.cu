#include "cuda/sm80/backward_f32_launch.cuh"
#include "cuda/sm80/f32_product.cuh"

TILEWISE_F32_BACKWARD(backward_sm80_f32_d64_32x64_general, sm80::WarpProducts, true, 64, 32, 2, 2, 32, 2, 3)
