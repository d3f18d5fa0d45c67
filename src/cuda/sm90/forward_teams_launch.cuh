// Host side of the forward kernel by teams: preparing it for a device, launching it.
#ifndef TILEWISE_CUDA_SM90_FORWARD_TEAMS_LAUNCH_H_
#define TILEWISE_CUDA_SM90_FORWARD_TEAMS_LAUNCH_H_

#include <algorithm>

#include "cuda/call.h"
#include "cuda/packed_heads.h"
#include "cuda/sm90/forward_host.cuh"
#include "cuda/sm90/forward_teams.cuh"
#include "cuda/support/launch.cuh"

namespace tilewise::sm90 {

template <typename C>
cudaError_t launch_by_teams(const ForwardParams& p, const cuda::Call& call) {
  TeamArgs args;
  cudaError_t error = make_args<C>(p, &args);
  if (error != cudaSuccess || args.order.total == 0) return error;
  const cuda::PackedHeads packed = cuda::pack_heads(p.seqlen_q, p.group(), C::kTileM);
  args.rows_log2 = packed.rows_log2;
  args.packs = tile::FastDivide(packed.packs);
  if (packed.rows_log2 < 6)
    error = encode_tensor_map(args.q, p.q, extent_q(p, p.head_dim), 1 << packed.rows_log2);
  if (error != cudaSuccess) return error;
  const bool last_first = args.order.last_first;
  args.order = tile::Order(packed.tiles_m, p.heads_kv * packed.packs, p.batch);
  args.order.last_first = last_first;
  // What teams work on at one time are whole heads, whose keys all tiles find in the L2.
  args.order.group =
      std::clamp(call.multiprocessors * C::kTeams / args.order.tiles_m, 1, args.order.all_heads);
  args.pieces = tile::Pieces(p, args.order);
  args.control = static_cast<uint32_t*>(call.control);
  return cuda::launch_early(forward_by_teams<C>, std::min(args.order.total, call.multiprocessors),
                            C::kThreads, sizeof(TeamShared<C>), call.stream, args);
}

// A row of the table: the kernel for plain scores and the one for shaped ones.
template <typename T, int... kSizes>
struct TeamRow {
  using Plain = TeamConfig<T, kSizes...>;
  using Shaped = TeamConfig<T, kSizes..., true>;

  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    return tile::is_shaped(p) ? launch_by_teams<Shaped>(p, call) : launch_by_teams<Plain>(p, call);
  }
  static cudaError_t prepare() {
    const cudaError_t error = cuda::allow_shared(forward_by_teams<Plain>, sizeof(TeamShared<Plain>));
    return error == cudaSuccess ? cuda::allow_shared(forward_by_teams<Shaped>, sizeof(TeamShared<Shaped>))
                                : error;
  }
};

}  // namespace tilewise::sm90

// After the name: element, head_dim, teams, warpgroups of a team, keys of a tile, stages.
#define TILEWISE_SM90_FORWARD_TEAMS(name, ...)                                                          \
  namespace tilewise::cuda {                                                                            \
  cudaError_t name(const ForwardParams& p, const Call& call) {                                          \
    return sm90::TeamRow<__VA_ARGS__>::launch(p, call);                                                 \
  }                                                                                                     \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm90::TeamRow<__VA_ARGS__>::prepare(); } \
  const char* name##_refuses(const ForwardParams& p) { return sm90::forward_refuses(p); }               \
  }

#endif  // TILEWISE_CUDA_SM90_FORWARD_TEAMS_LAUNCH_H_
