// Host side of the backward rows: what a call's strides must be, scratch, preparing the kernels for a device,
// launching them. A unit holds the rows of one dtype and one pair of head dimensions: score class simple and
// general.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_LAUNCH_H_
#define TILEWISE_CUDA_SM80_BACKWARD_LAUNCH_H_

#include <algorithm>

#include "cuda/call.h"
#include "cuda/simt/backward_parts.h"
#include "cuda/sm80/backward_bias.cuh"
#include "cuda/sm80/backward_keys.cuh"
#include "cuda/sm80/backward_queries.cuh"
#include "cuda/sm80/backward_tiles.cuh"
#include "cuda/support/launch.cuh"
#include "cuda/tile/wide.h"

namespace tilewise::sm80 {

inline BackwardArgs make_backward_args(const BackwardParams& p, RowStats delta) {
  BackwardArgs args;
  args.params = p;
  args.params.delta = delta;
  args.queries_per_key_head = static_cast<int32_t>(p.group());
  args.scale_log2 = p.scale * kLog2E;
  args.dropout_scale = dropout_scale_of(p.dropout_threshold);
  args.shaped = tile::is_shaped(p) || p.bias.data;
  args.wide_q = tile::is_wide(p.q);
  args.wide_k = tile::is_wide(p.k);
  args.wide_v = tile::is_wide(p.v);
  args.wide_dout = tile::is_wide(p.dout);
  args.wide_dq = p.dq.data && tile::stores_wide(p.dq, p.head_dim);
  args.wide_dk = p.dk.data && tile::stores_wide(p.dk, p.head_dim);
  args.wide_dv = p.dv.data && tile::stores_wide(p.dv, p.head_dim_v);
  return args;
}

// Tiles of keys: under a causal mask the first ones have the most queries.
inline tile::Order order_of_keys(const BackwardParams& p, int tile_n) {
  tile::Order order((p.seqlen_kv + tile_n - 1) / tile_n, p.heads_kv, p.batch);
  if (p.window_right >= 0 && p.window_left < 0)
    order.walk_together(p.seqlen_q * p.group() * (p.head_dim + p.head_dim_v) * 2, 1);
  return order;
}

template <typename C>
cudaError_t launch_keys(BackwardArgs args, cudaStream_t stream) {
  static_assert(sizeof(KeyShared<C>) <= kMostShared);
  const BackwardParams& p = args.params;
  args.order = order_of_keys(p, C::kTileN);
  if (args.order.total == 0) return cudaSuccess;
  const auto go = [&](Gradient gradient) {
    args.gradient = gradient;
    return cuda::launch_shared(backward_keys<C>, args.order.total, C::kThreads, sizeof(KeyShared<C>), stream,
                               args);
  };
  if (!C::kOneSum && p.dk.data && p.dv.data) return go(Gradient::both);
  const cudaError_t error = p.dv.data ? go(Gradient::dv) : cudaSuccess;
  return error == cudaSuccess && p.dk.data ? go(Gradient::dk) : error;
}

template <typename C>
cudaError_t launch_queries(BackwardArgs args, cudaStream_t stream) {
  static_assert(sizeof(QueryShared<C>) <= kMostShared);
  args.order = tile::order_of(args.params, C::kTileM);
  if (args.order.total == 0 || !args.params.dq.data) return cudaSuccess;
  return cuda::launch_shared(backward_queries<C>, args.order.total, C::kThreads, sizeof(QueryShared<C>),
                             stream, args);
}

template <typename C>
cudaError_t launch_bias(const BackwardArgs& args, cudaStream_t stream) {
  static_assert(sizeof(QueryShared<C>) <= kMostShared);
  constexpr int64_t kMostBlocks = int64_t{1} << 30;
  const int64_t* shape = args.params.bias_shape;
  const int64_t row_tiles = (shape[2] + C::kTileM - 1) / C::kTileM,
                key_tiles = (shape[3] + C::kTileN - 1) / C::kTileN;
  const int64_t total = shape[0] * shape[1] * row_tiles * key_tiles;
  if (total == 0) return cudaSuccess;
  return cuda::launch_shared(backward_bias<C>, std::min(total, kMostBlocks), C::kThreads,
                             sizeof(QueryShared<C>), stream, args, static_cast<int>(row_tiles),
                             static_cast<int>(key_tiles), total);
}

template <typename Keys, typename Queries>
struct BackwardKernels {
  static cudaError_t launch(const BackwardArgs& args, cudaStream_t stream) {
    const cudaError_t error = launch_keys<Keys>(args, stream);
    return error == cudaSuccess ? launch_queries<Queries>(args, stream) : error;
  }
  static cudaError_t prepare() {
    const cudaError_t error = cuda::allow_shared(backward_keys<Keys>, sizeof(KeyShared<Keys>));
    return error == cudaSuccess ? cuda::allow_shared(backward_queries<Queries>, sizeof(QueryShared<Queries>))
                                : error;
  }
};

// A row of the table. Plain scores take the kernels of its class; softcap, ALiBi and scales that are not
// positive take the general ones, which have the code for them.
template <typename Tiles, typename Plain>
struct BackwardRow {
  using General = typename Tiles::General;
  using Bias = typename Tiles::Bias;

  static cudaError_t prepare() {
    cudaError_t error = Plain::prepare();
    if (error == cudaSuccess) error = General::prepare();
    if (error == cudaSuccess) error = cuda::allow_shared(backward_bias<Bias>, sizeof(QueryShared<Bias>));
    return error == cudaSuccess ? cuda::simt::prepare_parts() : error;
  }
  // D, then the gradients. D and dsinks are made by the kernels on plain FMA.
  static cudaError_t launch(const BackwardParams& p, const cuda::Call& call) {
    const BackwardArgs args = make_backward_args(p, cuda::simt::delta_in(call.scratch, p));
    cudaError_t error = cuda::simt::launch_delta(p, args.params.delta, call.stream);
    if (error != cudaSuccess) return error;
    error = tile::is_shaped(p) ? General::launch(args, call.stream) : Plain::launch(args, call.stream);
    if (error == cudaSuccess && p.dbias.data) error = launch_bias<Bias>(args, call.stream);
    if (error == cudaSuccess && p.dsinks) error = cuda::simt::launch_sinks(args.params, call.stream);
    return error;
  }
};

inline bool is_even(const RowTensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 4 == 0 && t.batch_stride % 2 == 0 && t.row_stride % 2 == 0 &&
         t.head_stride % 2 == 0;
}

// The planner's rules (cuda/rules.cpp) have looked at q, k and v.
inline const char* backward_refuses(const BackwardParams& p) {
  return is_even(p.dout) ? nullptr : "the base and outer strides of dout must be multiples of 4 bytes";
}

}  // namespace tilewise::sm80

// Gives a unit's kernels the name of a row (cuda/units.h).
#define TILEWISE_SM80_BACKWARD_ROW(name, kernels, type, dim, dim_v)                         \
  cudaError_t name(const BackwardParams& p, const Call& call) {                             \
    using Tiles = sm80::BackwardTiles<type, dim, dim_v>;                                    \
    return sm80::BackwardRow<Tiles, Tiles::kernels>::launch(p, call);                       \
  }                                                                                         \
  cudaError_t name##_prepare(const tilewise_problem&) {                                     \
    using Tiles = sm80::BackwardTiles<type, dim, dim_v>;                                    \
    return sm80::BackwardRow<Tiles, Tiles::kernels>::prepare();                             \
  }                                                                                         \
  const char* name##_refuses(const BackwardParams& p) { return sm80::backward_refuses(p); } \
  const char* name##_cannot(const tilewise_problem&) { return nullptr; }                    \
  int64_t name##_scratch(const tilewise_problem& problem) { return simt::delta_bytes(problem); }

#define TILEWISE_SM80_BACKWARD(simple, general, type, dim, dim_v) \
  namespace tilewise::cuda {                                      \
  TILEWISE_SM80_BACKWARD_ROW(simple, Simple, type, dim, dim_v)    \
  TILEWISE_SM80_BACKWARD_ROW(general, General, type, dim, dim_v)  \
  }

#endif  // TILEWISE_CUDA_SM80_BACKWARD_LAUNCH_H_
