// What a launch of the plain split forward carries, and its sizes.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_ARGS_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_ARGS_H_

#include <cuda_fp16.h>

#include <type_traits>

#include "core/params.h"
#include "cuda/sm90/forward_args.cuh"
#include "cuda/split_sizes.h"
#include "cuda/tile/fast_divide.cuh"
#include "cuda/tile/work.cuh"

namespace tilewise::sm90 {

// A sequence: the rows and keys of a unit, the same for every key head.
struct PlainSpan {
  int32_t batch, q_begin, kv_begin, len_q;
  int32_t rows;                 // that are written
  int32_t see_first, see_last;  // keys that some row sees
  int32_t first, groups;        // of kKeys; one without keys where rows are written all the same
  int32_t kv_first, kv_last, lo_shift, hi_shift;  // as in tile/work.cuh

  __host__ __device__ __forceinline__ int lo(int i) const { return max(kv_first, i + lo_shift); }
  __host__ __device__ __forceinline__ int hi(int i) const { return min(kv_last, i + hi_shift); }
};

// What every call needs stands first: a line of parameters that is not touched is not fetched.
struct PlainArgs {
  const unsigned char *q, *k, *v;
  int64_t k_block, v_block, k_head, v_head;  // strides in bytes
  int64_t q_batch, q_row, q_head;
  int32_t k_row, v_row;
  int32_t share, total;  // groups of a block, of a line; of all sequences alike
  float scale_log2;
  int32_t cluster;          // blocks of one, which share a unit
  tile::FastDivide groups;  // of a sequence, likewise
  tile::FastDivide group;
  PlainSpan span;  // of every sequence but for its batch, likewise

  void* o;
  float *lse, *parts;
  uint32_t* counters;
  const float* sinks;
  int64_t o_batch, o_row, o_head;  // of elements
  int32_t batch;
  bool o_f32;
  tile::FastDivide page, by_share, scale_rows;
  bool gather;  // pages do not hold whole groups of keys
  bool halves;  // but halves of groups of a byte an element
  const int32_t* page_table;
  int64_t table_batch, table_row;
  ForwardParams params;
  TileSource k_map, v_map;  // of a cluster's blocks
};

// kUniform: no length is the device's, and keys are not in pages. kCluster: blocks of a cluster share a unit,
// and join its parts through each other's shared memory. kMergeRows: the most rows of a unit.
// kHeads: neighbouring key heads of a block, whose warps are dealt to them.
template <typename Element_, typename Stored_, int kStages_, int kMergeRows_, bool kUniform_, bool kCluster_,
          int kHeads_ = 1>
struct PlainConfig {
  using Element = Element_;
  using Stored = Stored_;  // of k and v
  static constexpr bool kQuantized = sizeof(Stored) == 1;
  using Product = std::conditional_t<kQuantized, __half, Element>;
  static constexpr bool kUniform = kUniform_, kCluster = kCluster_;
  static constexpr int kStages = kStages_, kMergeRows = kMergeRows_;
  static constexpr int kDim = 128, kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kHeads = kHeads_, kSharing = kWarps / kHeads;  // warps of a head
  static constexpr int kRows = cuda::kSplitRows, kKeys = 32 / sizeof(Stored);
  static constexpr bool kHalves = kQuantized && !kUniform_ && !kCluster_;  // pages of half a group's keys
  static constexpr int kRowBytes = kDim * sizeof(Stored), kBoxKeys = 16;   // of a copy
  static constexpr int kHalfBytes = kKeys * kRowBytes, kStageBytes = 2 * kHalfBytes;  // K, then V
  static constexpr int kPitch = kDim + 4;
  static constexpr int kTable = kUniform ? 1 : kCluster ? 1 : kThreads;  // sequences
};

// Parts of the rows that this block of a cluster ends: of n blocks 16 / n rows each, whatever n is.
template <bool kCluster>
struct PlainParts {};
template <>
struct PlainParts<true> {
  float parts[cuda::kSplitRows][132];  // O, its maximum, its sum
};

template <typename C>
struct PlainShared : PlainParts<C::kCluster> {
  alignas(1024) unsigned char stage[C::kWarps][C::kStages][C::kStageBytes];
  float merge[C::kWarps][C::kMergeRows][C::kPitch];  // O of the warps at the end of a unit
  float top[C::kWarps][C::kRows], sum[C::kWarps][C::kRows];
  PlainSpan table[C::kTable];
  ptx::Mbarrier full[C::kWarps][C::kStages];
  float scale[C::kQuantized ? C::kWarps : 1][C::kStages][2][C::kKeys];  // of the keys of a stage: K's, V's
  ptx::Mbarrier laid, taken;  // a unit's rows are in `merge`; have been read there
  int32_t scanned[C::kWarps];
  int32_t found_entry, found_at, first_block, blocks;
  bool last;
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_ARGS_H_
