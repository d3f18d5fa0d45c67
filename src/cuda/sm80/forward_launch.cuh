// Host side of the forward kernels: preparing them for a device, launching them. A unit holds the rows of one
// dtype and one pair of head dimensions: score class simple and general.
#ifndef TILEWISE_CUDA_SM80_FORWARD_LAUNCH_H_
#define TILEWISE_CUDA_SM80_FORWARD_LAUNCH_H_

#include "cuda/call.h"
#include "cuda/sm80/forward.cuh"
#include "cuda/sm80/forward_tiles.cuh"
#include "cuda/support/launch.cuh"
#include "cuda/tile/wide.h"

namespace tilewise::sm80 {

// True where neighbouring keys lie side by side and a row begins at a multiple of `step` elements and of
// `bytes`.
inline bool is_paired(const ScoreTensor& t, int64_t step, uintptr_t bytes) {
  return t.data != nullptr && t.key_stride == 1 && reinterpret_cast<uintptr_t>(t.data) % bytes == 0 &&
         t.batch_stride % step == 0 && t.head_stride % step == 0 && t.row_stride % step == 0;
}

inline ForwardArgs make_args(const ForwardParams& p, int tile_m) {
  ForwardArgs args;
  args.params = p;
  args.order = tile::order_of(p, tile_m);
  args.queries_per_key_head = static_cast<int32_t>(p.group());
  args.shaped = tile::is_shaped(p);
  args.scale_log2 = p.scale * kLog2E;
  args.wide_q = tile::is_wide(p.q);
  args.wide_k = tile::is_wide(p.k);
  args.wide_v = tile::is_wide(p.v);
  args.wide_o = tile::stores_wide(p.o, p.head_dim_v);
  args.paired_bias = is_paired(p.bias, 2, p.bias.dtype == DType::f32 ? 8 : 4);
  args.paired_mask = p.mask.dtype == DType::bit ? is_paired(p.mask, 32, 4) : is_paired(p.mask, 2, 2);
  return args;
}

template <typename C>
cudaError_t launch_forward(const ForwardParams& p, cudaStream_t stream) {
  static_assert(sizeof(ForwardShared<C>) <= kMostShared);
  const ForwardArgs args = make_args(p, C::kTileM);
  if (args.order.total == 0) return cudaSuccess;
  return cuda::launch_shared(forward<C>, args.order.total, C::kThreads, sizeof(ForwardShared<C>), stream,
                             args);
}

// Plain scores take the large tile. Softcap, ALiBi and scales that are not positive cost registers: the
// general kernel has the code for them.
template <typename Tiles>
cudaError_t launch_simple(const ForwardParams& p, cudaStream_t stream) {
  return tile::is_shaped(p) ? launch_forward<typename Tiles::General>(p, stream)
                            : launch_forward<typename Tiles::Simple>(p, stream);
}

template <typename C>
cudaError_t prepare_forward() {
  return cuda::allow_shared(forward<C>, sizeof(ForwardShared<C>));
}

template <typename Tiles>
cudaError_t prepare_simple() {
  const cudaError_t error = prepare_forward<typename Tiles::Simple>();
  return error == cudaSuccess ? prepare_forward<typename Tiles::General>() : error;
}

}  // namespace tilewise::sm80

// Gives a unit's kernels the names of its two rows (cuda/units.h).
#define TILEWISE_SM80_FORWARD(simple, general, type, dim, dim_v)                                \
  namespace tilewise::cuda {                                                                    \
  cudaError_t simple(const ForwardParams& p, const Call& call) {                                \
    return sm80::launch_simple<sm80::ForwardTiles<type, dim, dim_v>>(p, call.stream);           \
  }                                                                                             \
  cudaError_t simple##_prepare(const tilewise_problem&) {                                       \
    return sm80::prepare_simple<sm80::ForwardTiles<type, dim, dim_v>>();                        \
  }                                                                                             \
  const char* simple##_refuses(const ForwardParams&) { return nullptr; }                        \
  cudaError_t general(const ForwardParams& p, const Call& call) {                               \
    return sm80::launch_forward<sm80::ForwardTiles<type, dim, dim_v>::General>(p, call.stream); \
  }                                                                                             \
  cudaError_t general##_prepare(const tilewise_problem&) {                                      \
    return sm80::prepare_forward<sm80::ForwardTiles<type, dim, dim_v>::General>();              \
  }                                                                                             \
  const char* general##_refuses(const ForwardParams&) { return nullptr; }                       \
  }

#endif  // TILEWISE_CUDA_SM80_FORWARD_LAUNCH_H_
