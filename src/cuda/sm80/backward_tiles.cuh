// The tiles of the backward kernels of each pair of head dimensions, the same in fp16 and bf16.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_TILES_H_
#define TILEWISE_CUDA_SM80_BACKWARD_TILES_H_

#include "cuda/sm80/backward_config.cuh"

namespace tilewise::sm80 {

// The two kernels of a score class (backward_launch.cuh).
template <typename Keys, typename Queries>
struct BackwardKernels;

// Simple, General and what makes dbias.
template <typename T, int kDim, int kDimV>
struct BackwardTiles;

template <typename T>
struct BackwardTiles<T, 64, 64> {
  using Simple = BackwardKernels<KeyConfig<T, 64, 64, 2, 64, 32, 2, false, 2>,
                                 QueryConfig<T, 64, 64, 2, 64, 2, false, 2>>;
  using General =
      BackwardKernels<KeyConfig<T, 64, 64, 1, 64, 32, 2, true, 3>, QueryConfig<T, 64, 64, 1, 32, 2, true, 3>>;
  using Bias = QueryConfig<T, 64, 64, 1, 32, 1, true, 3>;
};

template <typename T>
struct BackwardTiles<T, 96, 96> {
  using Simple = BackwardKernels<KeyConfig<T, 96, 96, 1, 64, 64, 2, false, 2>,
                                 QueryConfig<T, 96, 96, 2, 32, 2, false, 2>>;
  using General =
      BackwardKernels<KeyConfig<T, 96, 96, 1, 32, 32, 2, true, 2>, QueryConfig<T, 96, 96, 1, 32, 2, true, 2>>;
  using Bias = QueryConfig<T, 96, 96, 1, 64, 1, true, 2>;
};

template <typename T>
struct BackwardTiles<T, 128, 128> {
  using Simple = BackwardKernels<KeyConfig<T, 128, 128, 1, 64, 64, 2, false, 2>,
                                 QueryConfig<T, 128, 128, 2, 32, 2, false, 2>>;
  using General = BackwardKernels<KeyConfig<T, 128, 128, 1, 32, 32, 2, true, 2>,
                                  QueryConfig<T, 128, 128, 1, 64, 2, true, 2>>;
  using Bias = QueryConfig<T, 128, 128, 1, 64, 1, true, 2>;
};

template <typename T>
struct BackwardTiles<T, 192, 128> {
  using Simple = BackwardKernels<KeyConfig<T, 192, 128, 1, 64, 32, 1, false, 2>,
                                 QueryConfig<T, 192, 128, 1, 32, 2, false, 2>>;
  using General = BackwardKernels<KeyConfig<T, 192, 128, 1, 64, 16, 1, true, 2>,
                                  QueryConfig<T, 192, 128, 1, 32, 2, true, 2>>;
  using Bias = QueryConfig<T, 192, 128, 1, 64, 1, true, 2>;
};

template <typename T>
struct BackwardTiles<T, 256, 256> {
  using Simple = BackwardKernels<KeyConfig<T, 256, 256, 1, 32, 32, 1, false, 2, true>,
                                 QueryConfig<T, 256, 256, 1, 32, 1, false, 2>>;
  using General = BackwardKernels<KeyConfig<T, 256, 256, 1, 32, 32, 1, true, 2, true>,
                                  QueryConfig<T, 256, 256, 1, 32, 1, true, 2>>;
  using Bias = QueryConfig<T, 256, 256, 1, 32, 1, true, 2>;
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_BACKWARD_TILES_H_
