// Host side of the plain split forward: which calls it takes, in which form.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_LAUNCH_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_LAUNCH_H_

#include <algorithm>
#include <cstdint>

#include "core/softmax.h"
#include "cuda/sm90/split_plain.cuh"
#include "cuda/sm90/split_plain.h"
#include "cuda/sm90/tensor_map.h"
#include "cuda/support/launch.cuh"

namespace tilewise::sm90 {

template <typename Element, typename Stored = Element>
struct PlainHost {
  static constexpr bool kSeveral = sizeof(Stored) > 1;  // blocks of several heads
  static constexpr int64_t kColumns = 64 * sizeof(Stored), kVector = 16 / sizeof(Stored);
  // Blocks of several heads have few rows of each.
  template <bool kUniform, int kHeads = 1>
  using Line = PlainConfig<Element, Stored, 2, kHeads == 1 ? 16 : 2, kUniform, false, kHeads>;
  // A stage a warp, and where rows are few two launches fit side by side.
  template <int kMergeRows, bool kUniform>
  using Cluster = PlainConfig<Element, Stored, 1, kMergeRows, kUniform, true>;

  static constexpr int kKeys = Line<true>::kKeys, kBoxKeys = Line<true>::kBoxKeys;

  template <typename C>
  static cudaError_t prepare_one() {
    static_assert(sizeof(PlainShared<C>) <= 232448);
    cudaError_t error = cuda::allow_shared(split_plain<C>, sizeof(PlainShared<C>));
    if (error == cudaSuccess && C::kCluster)
      error = cudaFuncSetAttribute(split_plain<C>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return error;
  }

  static cudaError_t prepare() {
    if (!cuda::has_early_launch()) return cudaSuccess;
    for (const auto one :
         {prepare_one<Line<true>>, prepare_one<Line<false>>, prepare_one<Cluster<4, true>>,
          prepare_one<Cluster<4, false>>, prepare_one<Cluster<16, true>>, prepare_one<Cluster<16, false>>})
      if (const cudaError_t error = one(); error != cudaSuccess) return error;
    if constexpr (kSeveral) {
      for (const auto one : {prepare_one<Line<true, 4>>, prepare_one<Line<false, 4>>,
                             prepare_one<Line<true, 8>>, prepare_one<Line<false, 8>>})
        if (const cudaError_t error = one(); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

  static TensorExtent extent_of(const ForwardParams& p) {
    if (p.page_size) return {p.num_pages, p.page_size, p.heads_kv, kColumns};
    TensorExtent extent = extent_kv(p, kColumns);
    if (p.cache_batch_idx.data) extent.batch = p.cache_slots;
    if (p.cu_seqlens_kv.data) extent.batch = 1;
    return extent;
  }

  // Elements of one byte to the copy engine as pairs: nothing is done with them on the way.
  static RowTensor as_copied(RowTensor t) {
    constexpr int64_t kPair = 2 / sizeof(Stored);
    t.batch_stride /= kPair, t.row_stride /= kPair, t.head_stride /= kPair;
    return t;
  }

  static bool takes(const ForwardParams& p, const cuda::Call& call) {
    const auto aligned = [](const void* data, int64_t bytes) {
      return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
    };
    const auto strides = [](const RowTensor& t, int64_t by) {
      return t.batch_stride % by == 0 && t.row_stride % by == 0 && t.head_stride % by == 0;
    };
    return p.head_dim == 128 && p.head_dim_v == 128 && call.num_splits == 0 &&
           p.batch <= Line<false>::kTable && p.k.row_stride < (1 << 24) && p.v.row_stride < (1 << 24) &&
           p.softcap == 0.0f && !p.alibi_slopes && p.batch > 0 &&
           p.seqlen_q * p.group() <= cuda::kSplitRows && aligned(p.q.data, 16) && strides(p.q, 8) &&
           aligned(p.o.data, 16) && strides(p.o, 8) && strides(p.k, kVector) && strides(p.v, kVector) &&
           !tensor_map_refuses(as_copied(p.k), extent_of(p)) &&
           !tensor_map_refuses(as_copied(p.v), extent_of(p));
  }

  template <typename C>
  static cudaError_t go(const PlainArgs& args, dim3 grid, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = attributes[1].val.clusterDim.z = 1;
    attributes[1].val.clusterDim.y = static_cast<unsigned>(args.cluster);
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(C::kThreads);
    config.dynamicSmemBytes = sizeof(PlainShared<C>);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = C::kCluster ? 2 : 1;
    const auto once = [&] {
      const cudaError_t error = cudaLaunchKernelEx(&config, split_plain<C>, args);
      return error == cudaSuccess ? cudaGetLastError() : error;
    };
    const cudaError_t error = once();
    if (error == cudaSuccess) return error;
    (void)cudaGetLastError();  // this device was never prepared
    return prepare_one<C>() == cudaSuccess ? once() : error;
  }

  template <bool kUniform>
  static cudaError_t go(const PlainArgs& args, int64_t rows, int64_t heads, dim3 grid, cudaStream_t stream) {
    if (args.cluster == 1) {
      if constexpr (kSeveral) {
        if (heads == 8) return go<Line<kUniform, 8>>(args, grid, stream);
        if (heads == 4) return go<Line<kUniform, 4>>(args, grid, stream);
      }
      return go<Line<kUniform>>(args, grid, stream);
    }
    return rows <= 4 ? go<Cluster<4, kUniform>>(args, grid, stream)
                     : go<Cluster<16, kUniform>>(args, grid, stream);
  }

  // Clusters of as many blocks that the device runs at a time.
  static int clusters_at_once(int blocks) {
    using C = Cluster<16, false>;
    if (prepare_one<C>() != cudaSuccess) return 0;
    cudaLaunchAttribute of_cluster{};
    of_cluster.id = cudaLaunchAttributeClusterDimension;
    of_cluster.val.clusterDim.x = of_cluster.val.clusterDim.z = 1;
    of_cluster.val.clusterDim.y = static_cast<unsigned>(blocks);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1, static_cast<unsigned>(blocks));
    config.blockDim = dim3(C::kThreads);
    config.dynamicSmemBytes = sizeof(PlainShared<C>);
    config.attrs = &of_cluster;
    config.numAttrs = 1;
    int count = 0;
    if (cudaOccupancyMaxActiveClusters(&count, split_plain<C>, &config) != cudaSuccess) {
      (void)cudaGetLastError();
      return 0;
    }
    return count;
  }

  // Blocks of a cluster for each unit, 1: none. Of one sequence whose keys are few, whatever its length is:
  // the cuts are the same wherever its keys lie.
  static int64_t cluster_of(const ForwardParams& p, int64_t blocks) {
    static const int at_once[4] = {0, clusters_at_once(2), clusters_at_once(4), clusters_at_once(8)};
    const int64_t groups = (p.seqlen_kv + kKeys - 1) / kKeys;
    for (int log = 3; log > 0; --log) {
      const int64_t of = int64_t{1} << log;
      // A step of each warp at most, and for most blocks a piece that is worth it.
      if (p.batch == 1 && p.heads_kv <= at_once[log] && p.heads_kv * of <= blocks && groups <= 8 * of &&
          (of == 2 ? groups > 1 : groups > 2 * of))
        return of;
    }
    return 1;
  }

  // Key heads of a block: several where more of the device's blocks then have work, rows are few, and
  // sequences so many that nearly all of them lie in one team's piece.
  static int64_t heads_of(const ForwardParams& p, int64_t blocks) {
    int64_t most = blocks / p.heads_kv * p.heads_kv, best = 1;
    for (const int64_t heads : {4, 8}) {
      const int64_t members = p.heads_kv / heads;
      if (!kSeveral || p.heads_kv % heads != 0 || p.seqlen_q * p.group() * heads > 8) continue;
      const int64_t teams = blocks / members;
      if (p.batch < 2 * teams || teams * members <= most) continue;
      most = teams * members;
      best = heads;
    }
    return best;
  }

  static PlainLaunch launch(const ForwardParams& p, const cuda::Call& call) {
    if (!takes(p, call) || !cuda::has_early_launch()) return {};
    PlainArgs a{};
    a.params = p;
    a.group = tile::FastDivide(p.group());
    const bool uniform = p.page_size == 0 && !p.q_lengths.data && !p.kv_lengths.data && !p.kv_starts.data &&
                         !p.cu_seqlens_q.data && !p.cu_seqlens_kv.data && !p.q_offset.data &&
                         !p.cache_batch_idx.data;
    // Of sequences whose lengths are the device's: as if all were full.
    int64_t groups = (p.seqlen_kv + kKeys - 1) / kKeys;
    if (uniform) {
      a.span = make_span(p, a.group, kKeys, 0);
      groups = a.span.groups;
      a.groups = tile::FastDivide(std::max<int64_t>(1, groups));
      if (groups == 0) return {true, cudaSuccess};
    }
    groups = std::max<int64_t>(1, groups);
    constexpr int64_t kLeast = sm80::kLeastShare / kKeys;
    const int64_t blocks = std::min(call.multiprocessors, cuda::kSplitBlocks), heads = heads_of(p, blocks);
    const int64_t members = p.heads_kv / heads;
    int64_t teams = blocks / members;
    if (teams == 0 || members * teams * 100 < blocks * 85) return {};
    a.cluster = static_cast<int32_t>(cluster_of(p, blocks));
    if (a.cluster > 1) teams = a.cluster;
    const int64_t total = groups * p.batch;
    const int64_t share = std::max(a.cluster > 1 ? 1 : kLeast, (total + teams - 1) / teams);
    a.total = static_cast<int32_t>(total);
    if (uniform && a.cluster == 1) teams = (total + share - 1) / share;
    a.share = static_cast<int32_t>(share);
    a.by_share = tile::FastDivide(share);
    const auto bytes = [](const void* data) { return static_cast<const unsigned char*>(data); };
    a.q = bytes(p.q.data);
    a.k = bytes(p.k.data), a.v = bytes(p.v.data);
    constexpr int64_t kBytes = sizeof(Stored);
    a.k_block = kBytes * p.k.batch_stride, a.v_block = kBytes * p.v.batch_stride;
    a.k_head = kBytes * p.k.head_stride, a.v_head = kBytes * p.v.head_stride;
    a.k_row = static_cast<int32_t>(kBytes * p.k.row_stride);
    a.v_row = static_cast<int32_t>(kBytes * p.v.row_stride);
    if (a.cluster > 1) {
      cudaError_t error = encode_tensor_map(a.k_map, as_copied(p.k), extent_of(p), kBoxKeys);
      if (error == cudaSuccess) error = encode_tensor_map(a.v_map, as_copied(p.v), extent_of(p), kBoxKeys);
      if (error != cudaSuccess) return {true, error};
    }
    a.q_batch = 2 * p.q.batch_stride, a.q_row = 2 * p.q.row_stride, a.q_head = 2 * p.q.head_stride;
    a.scale_log2 = p.scale * kLog2E;
    a.o = p.o.data, a.lse = p.lse.data, a.sinks = p.sinks;
    a.o_batch = p.o.batch_stride, a.o_row = p.o.row_stride, a.o_head = p.o.head_stride;
    a.o_f32 = p.o.dtype == DType::f32;
    a.parts = static_cast<float*>(call.scratch);
    a.counters = static_cast<uint32_t*>(call.control);
    a.batch = static_cast<int32_t>(p.batch);
    a.gather = p.page_size % (a.cluster > 1 ? kBoxKeys : kKeys) != 0;
    a.halves = p.page_size % (kKeys / 2) == 0;
    a.scale_rows = tile::FastDivide(std::max<int64_t>(1, p.scale_rows));
    a.page = tile::FastDivide(std::max<int64_t>(1, p.page_size));
    a.page_table = static_cast<const int32_t*>(p.page_table.data);
    a.table_batch = p.page_table.batch_stride, a.table_row = p.page_table.row_stride;
    const dim3 grid(static_cast<unsigned>(members), static_cast<unsigned>(teams));
    const int64_t rows = p.seqlen_q * p.group();
    return {true, uniform ? go<true>(a, rows, heads, grid, call.stream)
                          : go<false>(a, rows, heads, grid, call.stream)};
  }
};

}  // namespace tilewise::sm90
#define TILEWISE_SM90_PLAIN(name, element, stored)                                     \
  namespace tilewise::sm90 {                                                           \
  PlainLaunch launch_plain_##name(const ForwardParams& p, const cuda::Call& call) {    \
    return PlainHost<element, stored>::launch(p, call);                                \
  }                                                                                    \
  cudaError_t prepare_plain_##name() { return PlainHost<element, stored>::prepare(); } \
  }

#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_LAUNCH_H_
