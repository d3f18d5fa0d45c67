#include "cuda/sm80/backward_f32_launch.cuh"
#include "cuda/sm90/f32_product.cuh"

TILEWISE_F32_BACKWARD(backward_sm90_f32_d128_32x64_simple, sm90::WarpgroupProducts, false, 128, 32, 1, 2, 32,
                      1, 2)
