// Host side of a wide split forward.
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_LAUNCH_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_LAUNCH_H_

#include "cuda/sm80/split_launch.cuh"
#include "cuda/sm90/split_wide.cuh"

namespace tilewise::sm90 {

constexpr int kMostParts = 3;  // of a unit that its own blocks join

// Shares that end where units do leave fewer parts to join, which is worth some per cent of a block's work.
template <typename C>
int least_share(const WideArgs& args) {
  const int least = std::max(1, sm80::kLeastShare / C::kKeys), groups = args.span.groups;
  if (!args.uniform || groups == 0) return least;
  const int share = std::max(least, (args.total + args.teams - 1) / args.teams);
  const int parts = std::max(1, groups / share);
  const int even = share > groups ? (share + groups - 1) / groups * groups : (groups + parts - 1) / parts;
  return even * 100 <= share * 107 ? even : least;
}

// One key head of many query heads: a key head for each 64 of them, all in the same place, so that blocks of
// a team share their keys.
inline ForwardParams by_tiles_of_heads(ForwardParams p) {
  if (p.heads_kv != 1 || p.heads_q == cuda::kWideRows || p.heads_q % cuda::kWideRows) return p;
  p.heads_kv = p.heads_q / cuda::kWideRows;
  p.k.head_stride = p.v.head_stride = 0;
  return p;
}

template <typename C>
cudaError_t launch_wide(const ForwardParams& all, const cuda::Call& call) {
  static_assert(sizeof(WideShared<C>) <= sm80::kSharedOfHopper);
  const ForwardParams p = by_tiles_of_heads(all);
  WideArgs args;
  static_cast<sm80::SplitArgs&>(args) = sm80::split_args<C>(p, call);
  if (args.entries == 0) return cudaSuccess;
  const int most = std::min(call.multiprocessors, cuda::kSplitBlocks), heads = static_cast<int>(p.heads_kv);
  // Teams where they leave few blocks idle.
  const bool in_teams = heads > 1 && most / heads * heads * 100 >= most * 85;
  const int team = in_teams ? heads : 1, blocks = most / team * team;
  args.team = tile::FastDivide(team);
  args.teams = blocks / team;
  args.line_heads = heads / team;
  args.heads = tile::FastDivide(args.line_heads);
  args.total /= team;
  args.least_share = least_share<C>(args);
  const int64_t units = int64_t{args.entries} / std::max(1, args.chunks) * args.params.heads_kv;
  // One block joins two or three parts well, and not many.
  if (args.chunks == 0 && units * kMostParts < blocks)
    args.cuts = reinterpret_cast<int2*>(args.parts + 2 * cuda::kSplitBlocks *
                                                         cuda::split_part_floats(args.part_rows, C::kDimV));
  const cudaError_t error = cuda::launch_early(split_wide_forward<C>, blocks, C::kThreads,
                                               sizeof(WideShared<C>), call.stream, args);
  if (error != cudaSuccess || (args.chunks == 0 && !args.cuts)) return error;
  const int64_t items = args.part_rows * C::kPieces,
                slices = std::min(items, std::max<int64_t>(64, 512 / units));
  return cuda::launch_early(split_wide_join<C>, std::min<int64_t>(units * slices, 1 << 20), C::kThreads, 0,
                            call.stream, args, units, static_cast<int>(slices));
}

// 0 bytes: asking loads the kernel.
template <typename C>
cudaError_t prepare_wide() {
  const cudaError_t error = cuda::allow_shared(split_wide_join<C>, 0);
  return error == cudaSuccess ? cuda::allow_shared(split_wide_forward<C>, sizeof(WideShared<C>)) : error;
}

template <typename C>
struct WideRow {
  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    return launch_wide<C>(p, call);
  }
  static cudaError_t prepare() { return prepare_wide<C>(); }
};

// Latent attention: where v is the beginning of k's rows, one of the two builds, else the other.
template <typename InKeys, typename Apart>
struct LatentRow {
  static bool in_keys(const ForwardParams& p) {
    const auto same = [](int64_t extent, int64_t a, int64_t b) { return extent <= 1 || a == b; };
    return p.k.data == p.v.data && p.k.row_stride == p.v.row_stride && p.head_dim_v <= p.head_dim &&
           same(p.heads_kv, p.k.head_stride, p.v.head_stride) && p.k.batch_stride == p.v.batch_stride;
  }
  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    return in_keys(p) ? launch_wide<InKeys>(p, call) : launch_wide<Apart>(p, call);
  }
  static cudaError_t prepare() {
    const cudaError_t error = prepare_wide<InKeys>();
    return error == cudaSuccess ? prepare_wide<Apart>() : error;
  }
};

}  // namespace tilewise::sm90

#define TILEWISE_SM90_WIDE(name)                                                                         \
  namespace tilewise::cuda {                                                                             \
  cudaError_t name(const ForwardParams& p, const Call& call) { return sm90::WideUnit::launch(p, call); } \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm90::WideUnit::prepare(); }              \
  const char* name##_refuses(const ForwardParams&) { return nullptr; }                                   \
  }

#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_LAUNCH_H_
