// Host side of a backward kernel: what it refuses, its scratch, preparing it for a device, launching it.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_LAUNCH_H_
#define TILEWISE_CUDA_SM90_BACKWARD_LAUNCH_H_

#include <algorithm>

#include "cuda/call.h"
#include "cuda/sm90/backward.cuh"
#include "cuda/sm90/backward_rows.cuh"
#include "cuda/sm90/tensor_map.h"
#include "cuda/support/launch.cuh"
#include "cuda/tile/wide.h"
#include "tilewise/c.h"

namespace tilewise::sm90 {

inline int64_t up_to_tiles(int64_t rows, int64_t tile) { return (rows + tile - 1) / tile * tile; }

// Rows of scratch of one head; a call within a plan's bounds never has more than the plan.
inline int64_t rows_of_scratch(bool packed, int64_t batch, int64_t seqlen, int64_t total, int64_t tile_m) {
  return packed ? up_to_tiles(total + batch * tile_m, tile_m) : batch * up_to_tiles(seqlen, tile_m);
}

// A row of the table: its kernel, the one that adds in a fixed order, and both for shaped scores.
template <typename C>
struct BackwardRow {
  static cudaError_t prepare() {
    cudaError_t error = allow<false, false>();
    if (error == cudaSuccess) error = allow<true, false>();
    if (error == cudaSuccess) error = allow<false, true>();
    return error == cudaSuccess ? allow<true, true>() : error;
  }

  static const char* cannot(const tilewise_problem&) { return nullptr; }

  // dQ sums, D and, ordered, the turns of each tile.
  static int64_t scratch(const tilewise_problem& p) {
    const int64_t rows =
        rows_of_scratch(p.packed_q != 0, p.batch, p.seqlen_q, p.total_q, C::kTileM) * p.heads_q;
    const int64_t turns = p.deterministic ? rows / C::kTileM * C::kBlocks : 0;
    return (rows * (C::kDim + 1) + turns) * static_cast<int64_t>(sizeof(float));
  }

  // The planner's rules (cuda/rules.cpp) have looked at everything but a call's strides.
  static const char* refuses(const BackwardParams& p) {
    if (const char* rule = tensor_map_refuses(p.q, extent_q(p, p.head_dim))) return rule;
    if (const char* rule = tensor_map_refuses(p.dout, extent_q(p, p.head_dim_v))) return rule;
    if (const char* rule = tensor_map_refuses(p.k, extent_kv(p, p.head_dim))) return rule;
    return tensor_map_refuses(p.v, extent_kv(p, p.head_dim_v));
  }

  static bool is_causal(const BackwardParams& p) { return p.window_right >= 0 && p.window_left < 0; }

  static tile::Order order_of(const BackwardParams& p, int blocks) {
    tile::Order order((p.seqlen_kv + C::kTileN - 1) / C::kTileN, p.heads_kv, p.batch);
    const bool causal = is_causal(p);
    // Under a causal mask the first keys have the most queries. Ordered, each key tile of a head follows the
    // one before by the time that an addition takes: fewer of them run at once where heads walk together.
    // With both, key tiles also get shorter and shorter and wait at both ends of a wave, and gain by few of
    // each head in it, whatever the L2 holds.
    const bool few_of_each = p.deterministic && causal;
    if (p.deterministic || causal) {
      order.walk_together(p.seqlen_q * p.group() * (2 * (p.head_dim + p.head_dim_v) + 4 * C::kDim), 1);
      // Pieces of grouped heads are long and few: of a group that hardly fills the device the longest would
      // begin, and end, behind the shortest of the group before.
      const int groups = std::max(1, order.total / (blocks + blocks / 2));
      order.group = std::max(order.group, (order.all_heads + groups - 1) / groups);
    }
    if (few_of_each)
      order.group =
          std::max(order.group, std::min(order.all_heads, C::kWide ? 8 : std::min(16, 4 * order.group)));
    return order;
  }

  static cudaError_t launch(const BackwardParams& p, const cuda::Call& call) {
    BackwardArgs args;
    args.params = p;
    const int at_once = call.multiprocessors / C::kBlocks;
    args.order = order_of(p, at_once);
    if (p.group() > 1 && is_causal(p)) args.wave = static_cast<uint32_t>(at_once);
    args.scratch_rows = {
        rows_of_scratch(p.cu_seqlens_q.data != nullptr, p.batch, p.seqlen_q, p.total_q, C::kTileM),
        static_cast<int32_t>(up_to_tiles(p.seqlen_q, C::kTileM))};
    auto* scratch = static_cast<float*>(call.scratch);
    args.g_dq = p.dq.data ? scratch : nullptr;
    args.g_delta = scratch + args.scratch_rows.rows * p.heads_q * C::kDim;
    args.queries_per_key_head = static_cast<int32_t>(p.group());
    if (p.deterministic && p.dq.data)
      args.g_turns = reinterpret_cast<uint32_t*>(args.g_delta + args.scratch_rows.rows * p.heads_q);
    args.scale_log2 = p.scale * kLog2E;
    args.tiles_m = static_cast<int32_t>((p.seqlen_q + C::kTileM - 1) / C::kTileM);
    args.wide_dq = p.dq.data && tile::stores_wide(p.dq, p.head_dim);
    args.wide_dk = p.dk.data && tile::stores_wide(p.dk, p.head_dim);
    args.wide_dv = p.dv.data && tile::stores_wide(p.dv, p.head_dim_v);
    args.control = static_cast<uint32_t*>(call.control);
    cudaError_t error = encode_tensor_map(args.q, p.q, extent_q(p, p.head_dim), C::kTileM);
    if (error == cudaSuccess)
      error = encode_tensor_map(args.dout, p.dout, extent_q(p, p.head_dim_v), C::kTileM);
    if (error == cudaSuccess) error = encode_tensor_map(args.k, p.k, extent_kv(p, p.head_dim), C::kBlockKeys);
    if (error == cudaSuccess)
      error = encode_tensor_map(args.v, p.v, extent_kv(p, p.head_dim_v), C::kBlockKeys);
    if (error != cudaSuccess) return error;

    const auto query_tiles = static_cast<unsigned>(args.tiles_m * p.batch * p.heads_q);
    if (query_tiles > 0) {
      const bool wide = p.delta.data == nullptr && tile::stores_wide(p.o, 8) &&
                        tile::stores_wide(p.dout, 8) && p.o.dtype == p.dout.dtype;
      error = cuda::launch_early(backward_before<C>, query_tiles, kRowThreads, 0, call.stream, args,
                                 static_cast<int>(wide));
      if (error != cudaSuccess) return error;
    }
    if (args.order.total > 0) {
      const bool shaped = p.softcap > 0.0f || p.alibi_slopes != nullptr;
      const bool early = query_tiles > 0;
      if (p.deterministic)
        error = shaped ? launch_tiles<true, true>(args, call, early)
                       : launch_tiles<true, false>(args, call, early);
      else
        error = shaped ? launch_tiles<false, true>(args, call, early)
                       : launch_tiles<false, false>(args, call, early);
      if (error != cudaSuccess) return error;
    }
    if (query_tiles > 0 && args.g_dq) {
      error = cuda::launch_early(backward_after<C>, query_tiles, kRowThreads, 0, call.stream, args);
    }
    if (error == cudaSuccess && p.dsinks) {
      backward_sinks<C><<<static_cast<unsigned>(p.heads_q), kRowThreads, 0, call.stream>>>(args);
      error = cudaGetLastError();
    }
    return error;
  }

 private:
  template <bool kOrdered, bool kShaped>
  using Tiles = typename C::template With<kOrdered, kShaped>;

  template <typename T>
  static auto kernel_of() {
    if constexpr (T::kBlocks == 2)
      return backward_pair<T>;
    else
      return backward<T>;
  }

  template <bool kOrdered, bool kShaped>
  static cudaError_t allow() {
    using T = Tiles<kOrdered, kShaped>;
    return cuda::allow_shared(kernel_of<T>(), sizeof(SharedOf<T>));
  }

  // early: behind backward_before. Behind anything else, what is loaded before the wait might not be there.
  template <bool kOrdered, bool kShaped>
  static cudaError_t launch_tiles(const BackwardArgs& args, const cuda::Call& call, bool early) {
    using T = Tiles<kOrdered, kShaped>;
    const int blocks = std::min(args.order.total, call.multiprocessors / C::kBlocks) * C::kBlocks;
    if (early)
      return cuda::launch_early(kernel_of<T>(), blocks, T::kThreads, sizeof(SharedOf<T>), call.stream, args);
    return cuda::launch_shared(kernel_of<T>(), blocks, T::kThreads, sizeof(SharedOf<T>), call.stream, args);
  }
};

}  // namespace tilewise::sm90

#define TILEWISE_SM90_BACKWARD(name)                                                                 \
  namespace tilewise::cuda {                                                                         \
  cudaError_t name(const BackwardParams& p, const Call& call) { return sm90::Row::launch(p, call); } \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm90::Row::prepare(); }               \
  const char* name##_refuses(const BackwardParams& p) { return sm90::Row::refuses(p); }              \
  const char* name##_cannot(const tilewise_problem& problem) { return sm90::Row::cannot(problem); }  \
  int64_t name##_scratch(const tilewise_problem& problem) { return sm90::Row::scratch(problem); }    \
  }

#endif  // TILEWISE_CUDA_SM90_BACKWARD_LAUNCH_H_
