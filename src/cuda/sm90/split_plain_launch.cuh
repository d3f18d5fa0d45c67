// Host side of the plain split forward: which calls it takes, in which form.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_LAUNCH_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_LAUNCH_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/softmax.h"
#include "cuda/sm90/split_plain.cuh"
#include "cuda/sm90/split_plain.h"
#include "cuda/support/launch.cuh"

namespace tilewise::sm90 {

template <typename Element>
struct PlainHost {
  static constexpr int kMostCluster = 16, kStages = 3;
  template <int kOfStages, bool kUniform, bool kCluster>
  using Config = PlainConfig<Element, kOfStages, kUniform, kCluster>;

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
    for (const auto one : {prepare_one<Config<1, true, true>>, prepare_one<Config<1, false, true>>,
                           prepare_one<Config<kStages, true, false>>, prepare_one<Config<kStages, false, false>>,
                           prepare_one<Config<kStages, true, true>>, prepare_one<Config<kStages, false, true>>})
      if (const cudaError_t error = one(); error != cudaSuccess) return error;
    return cudaSuccess;
  }

  static bool takes(const ForwardParams& p, const cuda::Call& call) {
    const auto aligned = [](const void* data, int64_t bytes) {
      return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
    };
    const auto strides = [](const RowTensor& t, int64_t by) {
      return t.batch_stride % by == 0 && t.row_stride % by == 0 && t.head_stride % by == 0;
    };
    const auto short_rows = [](const RowTensor& t) { return t.row_stride >= 0 && t.row_stride < (1 << 24); };
    return p.head_dim == 128 && p.head_dim_v == 128 && call.num_splits == 0 && p.softcap == 0.0f &&
           !p.alibi_slopes && p.batch > 0 && p.seqlen_q * p.group() <= cuda::kSplitRows &&
           p.page_size % cuda::kSplitGroup == 0 && aligned(p.q.data, 16) && strides(p.q, 8) &&
           aligned(p.o.data, 16) && strides(p.o, 8) && short_rows(p.k) && short_rows(p.v);
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

  template <int kOfStages>
  static cudaError_t go(const PlainArgs& args, bool uniform, dim3 grid, cudaStream_t stream) {
    if (args.cluster > 1)
      return uniform ? go<Config<kOfStages, true, true>>(args, grid, stream)
                     : go<Config<kOfStages, false, true>>(args, grid, stream);
    return uniform ? go<Config<kStages, true, false>>(args, grid, stream)
                   : go<Config<kStages, false, false>>(args, grid, stream);
  }

  // Clusters of as many blocks that the device runs at a time.
  static int clusters_at_once(int blocks) {
    using C = Config<kStages, true, true>;
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

  static PlainLaunch launch(const ForwardParams& p, const cuda::Call& call) {
    static const int mode = std::getenv("TW_PLAIN") ? std::atoi(std::getenv("TW_PLAIN")) : 16;
    static const int least_stages = std::getenv("TW_STAGES") ? std::atoi(std::getenv("TW_STAGES")) : 1;
    if (mode == 0) return {};
    if (!takes(p, call) || !cuda::has_early_launch()) return {};
    PlainArgs a{};
    a.params = p;
    a.group = tile::FastDivide(p.group());
    const bool uniform = p.page_size == 0 && !p.q_lengths.data && !p.kv_lengths.data && !p.kv_starts.data &&
                         !p.cu_seqlens_q.data && !p.cu_seqlens_kv.data && !p.q_offset.data &&
                         !p.cache_batch_idx.data;
    // Of sequences whose lengths are the device's: as if all were full.
    int64_t groups = (p.seqlen_kv + cuda::kSplitGroup - 1) / cuda::kSplitGroup;
    if (uniform) {
      a.span = make_span(p, a.group, 0);
      groups = a.span.groups;
      a.groups = tile::FastDivide(std::max<int64_t>(1, groups));
      if (groups == 0) return {true, cudaSuccess};
    }
    groups = std::max<int64_t>(1, groups);
    constexpr int64_t kLeast = sm80::kLeastShare / cuda::kSplitGroup;
    const int64_t members = p.heads_kv, blocks = std::min(call.multiprocessors, cuda::kSplitBlocks);
    int64_t teams = blocks / members;
    if (teams == 0 || members * teams * 100 < blocks * 85) return {};
    // A cluster for each unit, where lengths do not differ and that leaves few multiprocessors idle.
    a.cluster = 1;
    if (mode > 1 && (uniform || p.batch == 1)) {
      static const int at_once[5] = {0, clusters_at_once(2), clusters_at_once(4), clusters_at_once(8),
                                     mode >= 16 ? clusters_at_once(16) : 0};
      for (int log = 4; log > 0 && a.cluster == 1; --log) {
        const int64_t of = int64_t{1} << log, units = p.batch * members;
        if (units > at_once[log] || units * of > blocks) continue;
        const int64_t used = std::min(of, (groups + kLeast - 1) / kLeast);
        if (log > 1 && used * 2 <= of) continue;
        // Unless the line has more blocks that are of use.
        if (units * of * 3 < 2 * std::min(blocks, units * ((groups + kLeast - 1) / kLeast)) && of >= 8 && mode != 8) break;
        a.cluster = static_cast<int32_t>(of);
      }
    }
    int64_t share;
    if (a.cluster > 1) {
      share = (groups + a.cluster - 1) / a.cluster;
      teams = p.batch * a.cluster;
    } else {
      const int64_t total = groups * p.batch;
      share = std::max(kLeast, (total + teams - 1) / teams);
      a.total = static_cast<int32_t>(total);
      if (uniform) teams = (total + share - 1) / share;
    }
    a.share = static_cast<int32_t>(share);
    a.by_share = tile::FastDivide(share);
    const auto bytes = [](const void* data) { return static_cast<const unsigned char*>(data); };
    a.q = bytes(p.q.data), a.k = bytes(p.k.data), a.v = bytes(p.v.data);
    a.k_block = 2 * p.k.batch_stride, a.v_block = 2 * p.v.batch_stride;
    a.k_head = 2 * p.k.head_stride, a.v_head = 2 * p.v.head_stride;
    a.q_batch = 2 * p.q.batch_stride, a.q_row = 2 * p.q.row_stride, a.q_head = 2 * p.q.head_stride;
    a.k_row = static_cast<int32_t>(2 * p.k.row_stride), a.v_row = static_cast<int32_t>(2 * p.v.row_stride);
    a.scale_log2 = p.scale * kLog2E;
    a.o = p.o.data, a.lse = p.lse.data, a.sinks = p.sinks;
    a.o_batch = p.o.batch_stride, a.o_row = p.o.row_stride, a.o_head = p.o.head_stride;
    a.o_f32 = p.o.dtype == DType::f32;
    a.parts = static_cast<float*>(call.scratch);
    a.counters = static_cast<uint32_t*>(call.control);
    a.batch = static_cast<int32_t>(p.batch);
    a.page = tile::FastDivide(std::max<int64_t>(1, p.page_size));
    a.page_table = static_cast<const int32_t*>(p.page_table.data);
    a.table_batch = p.page_table.batch_stride, a.table_row = p.page_table.row_stride;
    const dim3 grid(static_cast<unsigned>(members), static_cast<unsigned>(teams));
    const bool one_step = share <= 8 && least_stages == 1;
    return {true, one_step ? go<1>(a, uniform, grid, call.stream) : go<kStages>(a, uniform, grid, call.stream)};
  }
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_LAUNCH_H_
