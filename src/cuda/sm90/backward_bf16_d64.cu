#include "cuda/sm90/backward_launch.cuh"

namespace tilewise::sm90 {

using Row = BackwardRow<BackwardConfig<__nv_bfloat16, 64, 128>>;

}  // namespace tilewise::sm90

TILEWISE_SM90_BACKWARD(backward_sm90_bf16_d64_128x128_simple)
