// Host side of a forward kernel: what it refuses, preparing it for a device, launching it.
#ifndef TILEWISE_CUDA_SM90_FORWARD_LAUNCH_H_
#define TILEWISE_CUDA_SM90_FORWARD_LAUNCH_H_

#include <algorithm>
#include <type_traits>

#include "cuda/call.h"
#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/forward_host.cuh"
#include "cuda/support/launch.cuh"

namespace tilewise::sm90 {

template <typename C>
cudaError_t launch_forward(const ForwardParams& p, uint32_t* control, int multiprocessors,
                           cudaStream_t stream) {
  ForwardArgs args;
  const cudaError_t error = make_args<C>(p, &args);
  if (error != cudaSuccess || args.order.total == 0) return error;
  args.control = control;
  const int blocks = std::min(args.order.total, multiprocessors);
  return cuda::launch_early(forward<C>, blocks, C::kThreads, sizeof(ForwardShared<C>), stream, args);
}

template <typename C>
cudaError_t prepare_forward() {
  return cuda::allow_shared(forward<C>, sizeof(ForwardShared<C>));
}

// A row of the table: the kernel for plain scores and the one, of another tile, for shaped ones. Each unit
// names its own Row and gives it the table's name (cuda/units.h).
template <typename Plain, typename Shaped>
struct ForwardRow {
  static_assert(!Plain::kShaped && Shaped::kShaped);
  static_assert(std::is_same_v<typename Plain::Element, typename Shaped::Element>);
  static_assert(Plain::kDim == Shaped::kDim && Plain::kDimV == Shaped::kDimV);

  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    auto* control = static_cast<uint32_t*>(call.control);
    return tile::is_shaped(p) ? launch_forward<Shaped>(p, control, call.multiprocessors, call.stream)
                              : launch_forward<Plain>(p, control, call.multiprocessors, call.stream);
  }

  static cudaError_t prepare() {
    const cudaError_t error = prepare_forward<Plain>();
    return error == cudaSuccess ? prepare_forward<Shaped>() : error;
  }
};

}  // namespace tilewise::sm90

#define TILEWISE_SM90_FORWARD(name)                                                                 \
  namespace tilewise::cuda {                                                                        \
  cudaError_t name(const ForwardParams& p, const Call& call) { return sm90::Row::launch(p, call); } \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm90::Row::prepare(); }              \
  const char* name##_refuses(const ForwardParams& p) { return sm90::forward_refuses(p); }           \
  }

#endif  // TILEWISE_CUDA_SM90_FORWARD_LAUNCH_H_
