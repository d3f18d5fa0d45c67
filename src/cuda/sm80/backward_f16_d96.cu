#include "cuda/sm80/backward_launch.cuh"

namespace tilewise::sm80 {

using T = __half;
using Simple =
    BackwardKernels<KeyConfig<T, 96, 96, 1, 64, 64, 2, false, 2>, QueryConfig<T, 96, 96, 2, 32, 2, false, 2>>;
using General =
    BackwardKernels<KeyConfig<T, 96, 96, 1, 32, 32, 2, true, 2>, QueryConfig<T, 96, 96, 1, 32, 2, true, 2>>;
using Bias = QueryConfig<T, 96, 96, 1, 64, 1, true, 2>;

}  // namespace tilewise::sm80

TILEWISE_SM80_BACKWARD(backward_sm80_f16_d96_64x64_simple, backward_sm80_f16_d96_32x64_general)
