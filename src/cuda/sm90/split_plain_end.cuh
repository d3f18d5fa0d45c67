// The end of a unit in the plain split forward: the warps of a block put together, and the parts of several
// blocks.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_END_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_END_H_

#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/sm80/split_join.cuh"
#include "cuda/sm90/split_plain_load.cuh"
#include "cuda/sm90/split_plain_product.cuh"

namespace tilewise::sm90 {

// A row of a part or of all: four columns a lane, O not divided yet; `top` in exponents of 2.
struct PlainRow {
  float top = kNegativeInfinity, sum = 0.0f;
  float4 o = {0.0f, 0.0f, 0.0f, 0.0f};

  __device__ __forceinline__ void add(float weight, float4 x) {
    o.x = fmaf(weight, x.x, o.x), o.y = fmaf(weight, x.y, o.y);
    o.z = fmaf(weight, x.z, o.z), o.w = fmaf(weight, x.w, o.w);
  }
};

// Where row r of a key head of a unit ends, by a warp.
template <typename C>
__device__ __forceinline__ void write_plain(const PlainArgs& args, const PlainSpan& s, int batch, int head_kv,
                                            int r, const PlainRow& row) {
  using T = typename C::Element;
  const int lane = threadIdx.x % 32, group = static_cast<int>(args.group.divisor);
  const int query = args.group.divide(r), head = head_kv * group + r - query * group;
  const bool real = query < s.len_q;
  const float probe = (row.sum + row.o.x) * 0.0f + (row.o.y + row.o.z) * 0.0f + row.o.w * 0.0f;
  if (__any_sync(~0u, probe != 0.0f) && real)
    return sm80::exact_row<T, typename C::Stored>(args.params, batch, head, head_kv, query, 0, C::kDim);
  const bool sees = real && row.sum != 0.0f;
  const float sink = args.sinks && real ? args.sinks[head * args.params.sinks_stride] : kNegativeInfinity;
  const sm80::SplitEnd end(row.top, row.sum, sink);
  const float factor = sees ? end.factor() : 0.0f;
  const int64_t at = batch * args.o_batch + (s.q_begin + query) * args.o_row + head * args.o_head + 4 * lane;
  const float4 o = sees ? make_float4(row.o.x * factor, row.o.y * factor, row.o.z * factor, row.o.w * factor)
                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (args.o_f32)
    *reinterpret_cast<float4*>(static_cast<float*>(args.o) + at) = o;
  else
    *reinterpret_cast<uint2*>(static_cast<T*>(args.o) + at) =
        make_uint2(ptx::pack<T>(o.x, o.y), ptx::pack<T>(o.z, o.w));
  if (args.lse && lane == 0) args.params.lse.at(batch, s.q_begin + query, head) = sees ? end.lse() : sink;
}

// Row r of the warps of the block's head h.
template <typename C>
__device__ __forceinline__ PlainRow merge_row(const PlainShared<C>& shared, int h, int r) {
  PlainRow row;
#pragma unroll
  for (int n = 0; n < C::kSharing; ++n) row.top = fmaxf(row.top, shared.top[h * C::kSharing + n][r]);
#pragma unroll
  for (int n = 0; n < C::kSharing; ++n) {
    const int w = h * C::kSharing + n;
    const float weight = sm80::part_weight(shared.top[w][r], row.top);
    row.sum = fmaf(weight, shared.sum[w][r], row.sum);
    row.add(weight, *reinterpret_cast<const float4*>(&shared.merge[w][r][4 * (threadIdx.x % 32)]));
  }
  return row;
}

// Row r from `count` parts in ascending order, by a warp: o_of(n) and end_of(n) are of the n-th.
template <int kAtOnce, typename OOf, typename EndOf>
__device__ __forceinline__ PlainRow join_parts(int count, const OOf& o_of, const EndOf& end_of) {
  const int lane = threadIdx.x % 32;
  PlainRow row;
  float4 o[kAtOnce];
  const auto read = [&](int begin) {
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) o[n] = o_of(min(begin + n, count - 1));
  };
  read(0);
  float2 end = lane < count ? end_of(lane) : make_float2(kNegativeInfinity, 0.0f);
  row.top = end.x;
#pragma unroll 1
  for (int n = lane + 32; n < count; n += 32) row.top = fmaxf(row.top, end_of(n).x);
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) row.top = fmaxf(row.top, __shfl_xor_sync(~0u, row.top, bit));
  float weight = 0.0f;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kAtOnce) {
    if (begin % 32 == 0) {
      if (begin > 0) end = begin + lane < count ? end_of(begin + lane) : make_float2(kNegativeInfinity, 0.0f);
      weight = sm80::part_weight(end.x, row.top);
      row.sum = fmaf(weight, end.y, row.sum);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const float of_part = __shfl_sync(~0u, weight, (begin + n) % 32);
      if (begin + n < count) row.add(of_part, o[n]);
    }
    if (begin + kAtOnce < count) read(begin + kAtOnce);
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) row.sum += __shfl_xor_sync(~0u, row.sum, bit);
  return row;
}

// To the block of the cluster that ends row r.
template <typename C>
__device__ __forceinline__ void send_row(const PlainArgs& args, PlainShared<C>& shared, int r,
                                         const PlainRow& row) {
  const int blocks = args.cluster, rank = static_cast<int>(ptx::cluster_rank()), lane = threadIdx.x % 32;
  float* s_row = shared.parts[rank * (C::kRows / blocks) + r / blocks];
  const uint32_t there = ptx::cluster_address(ptx::shared_address(s_row), r % blocks);
  ptx::cluster_store(there + 16 * lane, row.o.x, row.o.y, row.o.z, row.o.w);
  if (lane == 0) ptx::cluster_store(there + 4 * C::kDim, row.top, row.sum, 0.0f, 0.0f);
}

template <typename C>
__device__ __forceinline__ void join_cluster(const PlainArgs& args, PlainShared<C>& shared,
                                             const PlainSpan& s, int batch) {
  const int blocks = args.cluster, rank = static_cast<int>(ptx::cluster_rank()), lane = threadIdx.x % 32;
  const int each = C::kRows / blocks, warp = threadIdx.x / 32;
  ptx::cluster_release();
  if (rank >= s.rows) return;
  ptx::cluster_acquire();
#pragma unroll 1
  for (int i = warp; rank + i * blocks < s.rows; i += C::kWarps) {
    const PlainRow row = join_parts<8>(
        blocks,
        [&](int n) { return *reinterpret_cast<const float4*>(&shared.parts[n * each + i][4 * lane]); },
        [&](int n) { return *reinterpret_cast<const float2*>(&shared.parts[n * each + i][C::kDim]); });
    write_plain<C>(args, s, batch, blockIdx.x, rank + i * blocks, row);
  }
}

// A part in scratch: rows of O, then a maximum and a sum for each.
struct PlainPart {
  float* data;
  __device__ __forceinline__ PlainPart(const PlainArgs& args, int index)
      : data(args.parts + index * cuda::split_part_floats(cuda::kSplitRows, 128)) {}
  __device__ __forceinline__ float4* o(int r) const {
    return reinterpret_cast<float4*>(data + r * 128) + threadIdx.x % 32;
  }
  __device__ __forceinline__ float2* end(int r) const {
    return reinterpret_cast<float2*>(data + cuda::kSplitRows * 128) + r;
  }
};

// The last block of a unit to arrive joins what all of them left.
template <typename C>
__device__ __forceinline__ void join_blocks(const PlainArgs& args, PlainShared<C>& shared, const PlainSpan& s,
                                            int batch, int begin, int share) {
  const int warp = threadIdx.x / 32, members = gridDim.x, member = blockIdx.x;
  __syncthreads();  // all of this block's part is written
  if (threadIdx.x == 0) {
    const int first = C::kUniform ? args.by_share.divide(begin) : begin / share;
    const int end = begin + s.groups - 1;
    const uint32_t blocks = (C::kUniform ? args.by_share.divide(end) : end / share) - first + 1;
    const int name = first * members + member, shift = name % 4 * 8;
    shared.first_block = first;
    shared.blocks = static_cast<int32_t>(blocks);
    uint32_t* word = args.counters + name / 4;
    // Releases what the block wrote, as the barrier gave it to this thread, and acquires the others'.
    shared.last = (ptx::add_acquire_release(word, 1u << shift) >> shift & 255u) == blocks - 1;
    if (shared.last) atomicSub(word, blocks << shift);
  }
  __syncthreads();
  if (!shared.last) return;
  const int first = shared.first_block, count = shared.blocks;
  const auto at = [&](int n) {
    return PlainPart(args, 2 * ((first + n) * members + member) + (n == 0 ? 1 : 0));
  };
#pragma unroll 1
  for (int i = warp; i < C::kHeads * s.rows; i += C::kWarps) {
    const PlainRow row = join_parts<16>(
        count, [&](int n) { return __ldcg(at(n).o(i)); }, [&](int n) { return __ldcg(at(n).end(i)); });
    write_plain<C>(args, s, batch, blockIdx.x * C::kHeads + i % C::kHeads, i / C::kHeads, row);
  }
}

// What the warp made of a unit, for the warps that end its rows. `ordinal`: of the block's units.
template <typename C>
__device__ __forceinline__ void lay_down(PlainShared<C>& shared, const PlainProducts<C>& products, int rows,
                                         int ordinal) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (ordinal > 0) ptx::mbarrier_wait(&shared.taken, (ordinal - 1) & 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    const float sum = tile::row_sum(products.sum[r]);
    if (row >= rows || row >= C::kMergeRows) continue;
    if (lane % 4 == 0) {
      shared.top[warp][row] = products.top[r];
      shared.sum[warp][row] = sum;
    }
    products.put_row(shared.merge[warp][row], r);
  }
  ptx::mbarrier_arrive(&shared.laid);
}

// The rows of a unit that this warp ends: of a unit that several blocks share into a part, where `at` says
// with which group of keys this block begins; else -1.
template <typename C>
__device__ __forceinline__ void take_rows(const PlainArgs& args, PlainShared<C>& shared, const PlainSpan& s,
                                          int batch, int at, int ordinal) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const PlainPart part(args, 2 * (blockIdx.y * gridDim.x + blockIdx.x) + (at > 0 ? 0 : 1));
  ptx::mbarrier_wait(&shared.laid, ordinal & 1);
#pragma unroll 1
  for (int i = (warp + C::kWarps - ordinal % C::kWarps) % C::kWarps; i < C::kHeads * s.rows; i += C::kWarps) {
    const int h = i % C::kHeads, r = i / C::kHeads;
    const PlainRow row = merge_row(shared, h, r);
    if constexpr (C::kCluster) {
      send_row(args, shared, r, row);
    } else if (at >= 0) {
      __stcg(part.o(i), row.o);
      if (lane == 0) __stcg(part.end(i), make_float2(row.top, row.sum));
    } else {
      write_plain<C>(args, s, batch, blockIdx.x * C::kHeads + h, r, row);
    }
  }
  ptx::mbarrier_arrive(&shared.taken);
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_END_H_
