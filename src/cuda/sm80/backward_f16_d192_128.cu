#include "cuda/sm80/backward_launch.cuh"

namespace tilewise::sm80 {

using T = __half;
using Simple = BackwardKernels<KeyConfig<T, 192, 128, 1, 64, 32, 1, false, 2>,
                               QueryConfig<T, 192, 128, 1, 32, 2, false, 2>>;
using General = BackwardKernels<KeyConfig<T, 192, 128, 1, 64, 16, 1, true, 2>,
                                QueryConfig<T, 192, 128, 1, 32, 2, true, 2>>;
using Bias = QueryConfig<T, 192, 128, 1, 64, 1, true, 2>;

}  // namespace tilewise::sm80

TILEWISE_SM80_BACKWARD(backward_sm80_f16_d192_128_64x64_simple, backward_sm80_f16_d192_128_64x64_general)
