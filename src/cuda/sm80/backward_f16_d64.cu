#include "cuda/sm80/backward_launch.cuh"

namespace tilewise::sm80 {

using T = __half;
using Simple =
    BackwardKernels<KeyConfig<T, 64, 64, 2, 64, 32, 2, false, 2>, QueryConfig<T, 64, 64, 2, 64, 2, false, 2>>;
using General =
    BackwardKernels<KeyConfig<T, 64, 64, 1, 64, 32, 2, true, 3>, QueryConfig<T, 64, 64, 1, 32, 2, true, 3>>;
using Bias = QueryConfig<T, 64, 64, 1, 32, 1, true, 3>;

}  // namespace tilewise::sm80

TILEWISE_SM80_BACKWARD(backward_sm80_f16_d64_64x128_simple, backward_sm80_f16_d64_64x64_general)
