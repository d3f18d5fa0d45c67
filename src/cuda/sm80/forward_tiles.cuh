// The tiles of the forward kernels of each pair of head dimensions, the same in fp16 and bf16.
#ifndef TILEWISE_CUDA_SM80_FORWARD_TILES_H_
#define TILEWISE_CUDA_SM80_FORWARD_TILES_H_

#include "cuda/sm80/forward_config.cuh"

namespace tilewise::sm80 {

template <typename T, int kDim, int kDimV>
struct ForwardTiles;

template <typename T>
struct ForwardTiles<T, 64, 64> {
  using Simple = ForwardConfig<T, 64, 64, 2, 128, false, 2>;
  using General = ForwardConfig<T, 64, 64, 1, 64, true, 4>;
};

template <typename T>
struct ForwardTiles<T, 96, 96> {
  using Simple = ForwardConfig<T, 96, 96, 2, 64, false, 2>;
  using General = ForwardConfig<T, 96, 96, 1, 64, true, 3>;
};

template <typename T>
struct ForwardTiles<T, 128, 128> {
  using Simple = ForwardConfig<T, 128, 128, 2, 64, false, 2>;
  using General = ForwardConfig<T, 128, 128, 1, 64, true, 3>;
};

template <typename T>
struct ForwardTiles<T, 192, 128> {
  using Simple = ForwardConfig<T, 192, 128, 2, 64, false, 2>;
  using General = ForwardConfig<T, 192, 128, 1, 64, true, 2>;
};

template <typename T>
struct ForwardTiles<T, 256, 256> {
  using Simple = ForwardConfig<T, 256, 256, 1, 64, false, 2>;
  using General = ForwardConfig<T, 256, 256, 1, 64, true, 2>;
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_TILES_H_
