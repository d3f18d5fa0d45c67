#include "cuda/sm90/backward_launch.cuh"

namespace tilewise::sm90 {

using Row = BackwardRow<BackwardWideConfig<__half, 256, 256>>;

}  // namespace tilewise::sm90

TILEWISE_SM90_BACKWARD(backward_sm90_f16_d256_64x64_simple)
