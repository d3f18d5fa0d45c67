// Host side of a split forward: which build the device has room for, and its launches.
#ifndef TILEWISE_CUDA_SM80_SPLIT_LAUNCH_H_
#define TILEWISE_CUDA_SM80_SPLIT_LAUNCH_H_

#include <algorithm>

#include "core/softmax.h"
#include "cuda/call.h"
#include "cuda/sm80/split.cuh"
#include "cuda/support/launch.cuh"

namespace tilewise::sm80 {

constexpr size_t kSharedOfHopper = 232448;  // of a block on 9.0

template <typename C>
SplitArgs split_args(const ForwardParams& p, const cuda::Call& call) {
  SplitArgs args;
  args.params = p;
  args.group = tile::FastDivide(p.group());
  args.page = tile::FastDivide(std::max<int64_t>(1, p.page_size));
  args.scale_rows = tile::FastDivide(std::max<int64_t>(1, p.scale_rows));
  args.q_tiles = static_cast<int32_t>((p.seqlen_q * p.group() + C::kRows - 1) / C::kRows);
  args.part_rows = static_cast<int32_t>(cuda::split_part_rows(C::kRows, p.seqlen_q * p.group()));
  args.chunks = call.num_splits;
  args.entries = static_cast<int32_t>(p.batch * args.q_tiles * std::max(1, args.chunks));
  args.one_run = p.page_size % C::kKeys == 0;
  args.scale_log2 = p.scale * kLog2E;
  args.full_rows = p.head_dim == C::kDim && p.head_dim_v == C::kDimV;
  args.wide_stores = p.o.dtype != DType::f32 && p.head_dim_v % 8 == 0;
  if (p.softcap > 0.0f) {
    args.softcap_log2 = p.softcap * kLog2E;
    args.inverse_cap = 1.0f / p.softcap;
  }
  args.counters = static_cast<uint32_t*>(call.control);
  args.parts = static_cast<float*>(call.scratch);
  args.uniform = args.q_tiles == 1 && args.chunks == 0 && args.entries > 0 && !p.q_lengths.data &&
                 !p.kv_lengths.data && !p.kv_starts.data && !p.cu_seqlens_q.data && !p.cu_seqlens_kv.data &&
                 !p.q_offset.data;
  if (args.uniform) {
    args.span = span_of<C>(args, 0, 0);
    args.span_groups = tile::FastDivide(args.span.groups);
    args.heads = tile::FastDivide(p.heads_kv);
    args.early = p.page_size == 0 && !p.cache_batch_idx.data;
    args.total = static_cast<int32_t>(p.batch * p.heads_kv) * args.span.groups;
  }
  return args;
}

template <typename C>
cudaError_t launch_split(const SplitArgs& args, int blocks, cudaStream_t stream) {
  const cudaError_t error =
      cuda::launch_early(split_forward<C>, blocks, C::kThreads, sizeof(SplitShared<C>), stream, args);
  if (error != cudaSuccess || args.chunks == 0) return error;
  const int64_t units = int64_t{args.entries} / args.chunks * args.params.heads_kv;
  return cuda::launch_early(split_join<C>, std::min<int64_t>(units, 1 << 20), C::kThreads, 0, stream, args,
                            units);
}

// 0 bytes: asking loads the kernel.
template <typename C>
cudaError_t prepare_split() {
  const cudaError_t error = cuda::allow_shared(split_join<C>, 0);
  return error == cudaSuccess ? cuda::allow_shared(split_forward<C>, sizeof(SplitShared<C>)) : error;
}

// Whether the device gives a block that much.
inline bool has_shared(size_t bytes) {
  int device = 0, most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
         static_cast<size_t>(most) >= bytes;
}

// A row of the table: one block a multiprocessor with all of Hopper's shared memory, or two with what fits.
template <typename Large, typename Small>
struct SplitRow {
  static_assert(sizeof(SplitShared<Large>) <= kSharedOfHopper);
  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    const SplitArgs args = split_args<Large>(p, call);
    if (args.entries == 0) return cudaSuccess;
    if (has_shared(sizeof(SplitShared<Large>)))
      return launch_split<Large>(args, std::min(call.multiprocessors, cuda::kSplitBlocks), call.stream);
    return launch_split<Small>(args, std::min(2 * call.multiprocessors, cuda::kSplitBlocks), call.stream);
  }
  static cudaError_t prepare() {
    return has_shared(sizeof(SplitShared<Large>)) ? prepare_split<Large>() : prepare_split<Small>();
  }
};

// A row for 9.0 alone.
template <typename C>
struct QuantizedRow {
  static_assert(sizeof(SplitShared<C>) <= kSharedOfHopper);
  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    const SplitArgs args = split_args<C>(p, call);
    if (args.entries == 0) return cudaSuccess;
    return launch_split<C>(args, std::min(call.multiprocessors, cuda::kSplitBlocks), call.stream);
  }
  static cudaError_t prepare() { return prepare_split<C>(); }
};

}  // namespace tilewise::sm80

#define TILEWISE_SM80_SPLIT(name)                                                                         \
  namespace tilewise::cuda {                                                                              \
  cudaError_t name(const ForwardParams& p, const Call& call) { return sm80::SplitUnit::launch(p, call); } \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm80::SplitUnit::prepare(); }              \
  const char* name##_refuses(const ForwardParams&) { return nullptr; }                                    \
  }

#endif  // TILEWISE_CUDA_SM80_SPLIT_LAUNCH_H_
