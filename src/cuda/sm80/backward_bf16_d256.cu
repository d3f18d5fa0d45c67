#include "cuda/sm80/backward_launch.cuh"

namespace tilewise::sm80 {

using T = __nv_bfloat16;
using Simple = BackwardKernels<KeyConfig<T, 256, 256, 1, 32, 32, 1, false, 2, true>,
                               QueryConfig<T, 256, 256, 1, 32, 1, false, 2>>;
using General = BackwardKernels<KeyConfig<T, 256, 256, 1, 32, 32, 1, true, 2, true>,
                                QueryConfig<T, 256, 256, 1, 32, 1, true, 2>>;
using Bias = QueryConfig<T, 256, 256, 1, 32, 1, true, 2>;

}  // namespace tilewise::sm80

TILEWISE_SM80_BACKWARD(backward_sm80_bf16_d256_32x64_simple, backward_sm80_bf16_d256_32x64_general)
