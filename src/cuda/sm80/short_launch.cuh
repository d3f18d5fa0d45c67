// Host side of the rows for short sequences: which of their kernels a call takes, and how many queries are a
// piece.
#ifndef TILEWISE_CUDA_SM80_SHORT_LAUNCH_H_
#define TILEWISE_CUDA_SM80_SHORT_LAUNCH_H_

#include <algorithm>

#include "cuda/call.h"
#include "cuda/sm80/short_warp.cuh"
#include "cuda/support/launch.cuh"
#include "cuda/tile/wide.h"

namespace tilewise::sm80 {

// Heads are cut only where they are too few to occupy the device: keys are read once for each piece, but a
// warp takes some 1.5 us for 16 queries against 64 keys.
constexpr int kWantedWarps = 4;  // on a multiprocessor
constexpr int kMostRows = 256;   // of a piece

inline ShortArgs short_args(const ForwardParams& p, int multiprocessors) {
  const int64_t heads = std::max<int64_t>(1, p.batch * p.heads_q), fragments = (p.seqlen_q + 15) / 16;
  const int64_t pieces = std::clamp<int64_t>(int64_t{kWantedWarps} * multiprocessors / heads, 1,
                                             std::max<int64_t>(1, fragments));
  ShortArgs args;
  args.params = p;
  args.rows = static_cast<int32_t>(std::min<int64_t>(kMostRows, 16 * ((fragments + pieces - 1) / pieces)));
  args.pieces = tile::Pieces(
      p, tile::Order(args.rows == 0 ? 0 : (p.seqlen_q + args.rows - 1) / args.rows, p.heads_q, p.batch));
  args.key_heads = tile::FastDivide(p.group());
  args.shaped = tile::is_shaped(p);
  args.scale_log2 = args.shaped ? kLog2E : p.scale * kLog2E;
  args.wide_o = tile::stores_wide(p.o, p.head_dim_v);
  return args;
}

template <typename C>
cudaError_t launch_by_warps(const ForwardParams& p, const cuda::Call& call) {
  const ShortArgs args = short_args(p, call.multiprocessors);
  const int blocks = (args.pieces.total + C::kWarps - 1) / C::kWarps;
  if (blocks == 0) return cudaSuccess;
  return cuda::launch_early(short_by_warps<C>, blocks, C::kThreads, 0, call.stream, args);
}

// The kernels of a row, from the one with the fewest keys on.
template <typename T>
struct ShortRow {
  using Warp16 = WarpShort<T, 16, 4>;
  using Warp32 = WarpShort<T, 32, 3>;
  using Warp64 = WarpShort<T, 64, 2>;

  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    if (p.seqlen_kv <= Warp16::kKeys) return launch_by_warps<Warp16>(p, call);
    if (p.seqlen_kv <= Warp32::kKeys) return launch_by_warps<Warp32>(p, call);
    return launch_by_warps<Warp64>(p, call);
  }
  // Asking for what a kernel needs loads it.
  static cudaError_t prepare() {
    cudaFuncAttributes needs;
    for (const auto kernel : {short_by_warps<Warp16>, short_by_warps<Warp32>, short_by_warps<Warp64>}) {
      const cudaError_t error = cudaFuncGetAttributes(&needs, kernel);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
};

}  // namespace tilewise::sm80

#define TILEWISE_SM80_SHORT(name, type)                                                           \
  namespace tilewise::cuda {                                                                      \
  cudaError_t name(const ForwardParams& p, const Call& call) {                                    \
    return sm80::ShortRow<type>::launch(p, call);                                                 \
  }                                                                                               \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm80::ShortRow<type>::prepare(); } \
  const char* name##_refuses(const ForwardParams&) { return nullptr; }                            \
  }

#endif  // TILEWISE_CUDA_SM80_SHORT_LAUNCH_H_
