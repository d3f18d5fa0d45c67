#include "cuda/sm90/backward_launch.cuh"

namespace tilewise::sm90 {

using Row = BackwardRow<BackwardConfig<__nv_bfloat16, 96, 64>>;

}  // namespace tilewise::sm90

TILEWISE_SM90_BACKWARD(backward_sm90_bf16_d96_64x128_simple)
