#include "cuda/sm80/backward_launch.cuh"

namespace tilewise::sm80 {

using T = __nv_bfloat16;
using Simple = BackwardKernels<KeyConfig<T, 128, 128, 1, 64, 64, 2, false, 2>,
                               QueryConfig<T, 128, 128, 2, 32, 2, false, 2>>;
using General = BackwardKernels<KeyConfig<T, 128, 128, 1, 32, 32, 2, true, 2>,
                                QueryConfig<T, 128, 128, 1, 64, 2, true, 2>>;
using Bias = QueryConfig<T, 128, 128, 1, 64, 1, true, 2>;

}  // namespace tilewise::sm80

TILEWISE_SM80_BACKWARD(backward_sm80_bf16_d128_64x64_simple, backward_sm80_bf16_d128_32x64_general)
