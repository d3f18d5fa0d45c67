// Host side of the three-step rows: rounds of three launches.
#ifndef TILEWISE_CUDA_SM80_STANDARD_LAUNCH_H_
#define TILEWISE_CUDA_SM80_STANDARD_LAUNCH_H_

#include <algorithm>

#include "cuda/call.h"
#include "cuda/sm80/standard.cuh"
#include "cuda/support/launch.cuh"
#include "cuda/tile/wide.h"

namespace tilewise::sm80 {

template <typename C>
struct StandardRow {
  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    static_assert(sizeof(ValuesShared<C>) <= kMostShared);
    const cuda::StandardSizes sizes(p.batch, p.heads_q, p.seqlen_q, p.seqlen_kv);
    StandardArgs args;
    args.params = p;
    args.pitch = sizes.pitch;
    args.tiles = static_cast<int32_t>(sizes.tiles);
    args.key_tiles = static_cast<int32_t>(sizes.pitch / C::kTileN);
    args.queries_per_key_head = static_cast<int32_t>(p.group());
    args.wide_q = tile::is_wide(p.q);
    args.wide_k = tile::is_wide(p.k);
    args.wide_v = tile::is_wide(p.v);
    args.wide_o = tile::stores_wide(p.o, p.head_dim_v);
    auto* scratch = static_cast<uint8_t*>(call.scratch);
    args.scores = reinterpret_cast<float*>(scratch);
    args.weights = scratch + sizes.round * sizes.score_bytes();
    args.ends =
        reinterpret_cast<float2*>(scratch + sizes.round * (sizes.score_bytes() + sizes.weight_bytes()));
    for (args.first = 0; args.first < sizes.units; args.first += sizes.round) {
      const int64_t units = std::min(sizes.round, sizes.units - args.first);
      cudaError_t error = cudaSuccess;
      if (args.key_tiles > 0)
        error = cuda::launch_shared(standard_scores<C>, units * args.key_tiles, C::kThreads,
                                    sizeof(ScoresShared<C>), call.stream, args);
      if (error != cudaSuccess) return error;
      error = cuda::launch_shared(standard_softmax<C>, units * C::kTileM / C::kWarps, C::kThreads, 0,
                                  call.stream, args);
      if (error != cudaSuccess) return error;
      error = cuda::launch_shared(standard_values<C>, units, C::kThreads, sizeof(ValuesShared<C>),
                                  call.stream, args);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  // 0 bytes: asking loads the kernel.
  static cudaError_t prepare() {
    cudaError_t error = cuda::allow_shared(standard_scores<C>, sizeof(ScoresShared<C>));
    if (error == cudaSuccess) error = cuda::allow_shared(standard_softmax<C>, 0);
    return error == cudaSuccess ? cuda::allow_shared(standard_values<C>, sizeof(ValuesShared<C>)) : error;
  }
};

}  // namespace tilewise::sm80

#define TILEWISE_SM80_STANDARD(name, T, dim)                                 \
  namespace tilewise::cuda {                                                 \
  cudaError_t name(const ForwardParams& p, const Call& call) {               \
    return sm80::StandardRow<sm80::StandardConfig<T, dim>>::launch(p, call); \
  }                                                                          \
  cudaError_t name##_prepare(const tilewise_problem&) {                      \
    return sm80::StandardRow<sm80::StandardConfig<T, dim>>::prepare();       \
  }                                                                          \
  const char* name##_refuses(const ForwardParams&) { return nullptr; }       \
  }

#endif  // TILEWISE_CUDA_SM80_STANDARD_LAUNCH_H_
