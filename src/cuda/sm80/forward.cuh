// Forward attention on compute capability 8.0 and up: O = softmax(mask(score(Q K^T))) V by tiles of queries
// and keys, with the online softmax. One block takes one tile of queries of one head and walks its key tiles
// from the last to the first.
//
// Roles. Four warps alike, 16 queries a fragment, one or two fragments each. Products by mma, P in registers.
// Two to four blocks share a multiprocessor, and one's exponentials run under another's products.
//
// Shared memory. Q, one K tile, one V tile, swizzled. V(j) is copied under S = Q K(j)^T, K(j - 1) under the
// softmax and O += P V(j).
//
// Invariants. At most one group of copies is on its way. A barrier stands between the last read of a buffer
// and the copy that fills it again, and between a copy's end and the first read. Rows that no query of the
// tile sees are zero in shared memory: their weights are 0, but 0 * NaN is not. Where O is not finite all the
// same, the general class walks once more and clears what its masks hide from the whole tile; then rows are
// redone one by one (tile/exact.cuh).
#ifndef TILEWISE_CUDA_SM80_FORWARD_H_
#define TILEWISE_CUDA_SM80_FORWARD_H_

#include "cuda/ptx/registers.cuh"
#include "cuda/sm80/forward_general.cuh"
#include "cuda/sm80/forward_load.cuh"
#include "cuda/sm80/forward_product.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/natural_softmax.cuh"

namespace tilewise::sm80 {

// Sixteen rows from `row_in_tile` on, one by one, by one warp.
template <typename C>
__device__ __forceinline__ void redo_rows(const ForwardArgs& args, const ForwardShared<C>& shared,
                                          int row_in_tile) {
  using T = typename C::Element;
  const ForwardParams& p = args.params;
  const tile::Work& w = shared.work;
  const int lane = static_cast<int>(threadIdx.x) % 32, kv_head = w.head / args.queries_per_key_head;
#pragma unroll 1
  for (int i = row_in_tile; i < row_in_tile + 16; ++i) {
    const int row = w.row + i;
    if (row >= w.rows_q) return;
    if constexpr (C::kGeneral) {
      tile::exact_row<T, C::kDimV>(p, w, row, kv_head, lane, shared.general.lo[i], shared.general.hi[i],
                                   tile::GeneralPairs{p, w, row});
    } else {
      const int first = w.lo(row);
      tile::exact_row<T, C::kDimV>(p, w, row, kv_head, lane, first, row < w.len_q ? w.hi(row) : first,
                                   tile::PlainPairs());
    }
  }
}

template <typename C>
struct Forward {
  using T = typename C::Element;
  using Softmax = std::conditional_t<C::kGeneral, tile::NaturalSoftmax, tile::OnlineSoftmax>;

  const ForwardArgs& args;
  ForwardShared<C>& shared;
  float r_s[C::kFragments][C::kTileN / 2];
  float r_o[C::kFragments][C::kDimV / 2];
  Softmax softmax[C::kFragments];

  __device__ __forceinline__ Forward(const ForwardArgs& a, ForwardShared<C>& s) : args(a), shared(s) {}

  // Work is in shared memory.
  __device__ __forceinline__ void run() {
    if constexpr (C::kGeneral) {
      make_general_work(shared, args.params);
#pragma unroll 1
      for (bool careful = false;; careful = true) {
        walk(careful);
        if (!__syncthreads_or(spoiled()) || careful) break;
      }
    } else {
      walk(false);
    }
    finish();
  }

 private:
  __device__ __forceinline__ const tile::Work& work() const { return shared.work; }
  // Computed again at each use: kept, what hangs on the thread costs registers that the products need.
  static __device__ __forceinline__ int lane_now() { return ptx::thread_afresh() % 32; }
  static __device__ __forceinline__ int warp_row_now() {
    return ptx::thread_afresh() / 32 * 16 * C::kFragments;
  }
  __device__ __forceinline__ int row_of(int f) const {
    const int thread = ptx::thread_afresh();
    return work().row + thread / 32 * 16 * C::kFragments + 16 * f + thread % 32 / 4;
  }

  // Careful: values that no row sees are cleared.
  __device__ __forceinline__ void walk(bool careful) {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      softmax[f] = {};
#pragma unroll
      for (int i = 0; i < C::kDimV / 2; ++i) r_o[f][i] = 0.0f;
    }
    const tile::Work& w = work();
    if (w.tile_first >= w.tile_last) return;
    load_queries();
    if constexpr (C::kGeneral) {
      const GeneralRows<C> rows(args, shared, warp_row_now() + lane_now() / 4);
      Found at = find_tile(shared, args.params, w.tile_last);
      if (at.tile >= 0) load_keys(at.tile);
      while (at.tile >= 0) {
        const Found next = find_tile(shared, args.params, at.tile);
        general_step(rows, at, next.tile, careful);
        at = next;
      }
    } else {
      load_keys(w.tile_last - 1);
      for (int at = w.tile_last - 1; at >= w.tile_first; --at) step(at);
    }
    ptx::cp_async_wait<0>();
  }

  __device__ __forceinline__ void step(int at) {
    multiply_scores(at, at > work().tile_first ? at - 1 : -1);
    const bool full = work().is_full(at);
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      if (!full) tile::hide(r_s[f], work(), row_of(f), at * C::kTileN, 2 * (lane_now() % 4));
      softmax[f].raise(r_s[f], args.scale_log2).apply(r_o[f]);
      softmax[f].weigh(r_s[f], args.scale_log2);
    }
    multiply_values();
  }

  __device__ __forceinline__ void general_step(const GeneralRows<C>& rows, Found at, int next, bool careful) {
    multiply_scores(at.tile, next);
    if (careful) clear_unseen<typename C::VTile>(shared, args.params, shared.v, at.tile * C::kTileN);
    const int key = at.tile * C::kTileN + 2 * (lane_now() % 4);
    rows.finish_scores(r_s[0], key, work().is_full(at.tile), at.mixed);
    softmax[0].raise(r_s[0]).apply(r_o[0]);
    softmax[0].weigh(r_s[0]);
    if (args.params.dropout_threshold) rows.drop(r_s[0], key);
    multiply_values();
  }

  // Leaves V(at) readable and K(next), where there is one, on its way.
  __device__ __forceinline__ void multiply_scores(int at, int next) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    load_values(at);
    const int lane = lane_now(), half = lane / 16, row = warp_row_now() + lane % 16;
    scores<C>(r_s, LaneAddress(shared.q, row, half),
              LaneAddress(shared.k, half * 8 + lane % 8, lane / 8 % 2));
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (next >= 0) load_keys(next);
  }

  __device__ __forceinline__ void multiply_values() {
    const int lane = lane_now();
    values<C>(r_o, r_s, LaneAddress(shared.v, lane % 16, lane / 16));
  }

  __device__ __forceinline__ void load_queries() {
    const ForwardParams& p = args.params;
    const tile::Work& w = work();
    load_tile<T, C::kTileM, C::kDim, C::kThreads>(
        shared.q, static_cast<const T*>(p.q.data) + p.q.at(w.batch, w.q_begin + w.row, w.head),
        p.q.row_stride, 0, w.len_q - w.row, static_cast<int>(p.head_dim), args.wide_q);
  }
  template <int kColumns>
  __device__ __forceinline__ void load_tile_of(uint8_t* s_tile, const RowTensor& t, int64_t dim, bool wide,
                                               int at) {
    const tile::Work& w = work();
    const int key = at * C::kTileN;
    load_tile<T, C::kTileN, kColumns, C::kThreads>(
        s_tile, static_cast<const T*>(t.data) + t.at(w.batch, w.kv_begin + key, kv_head()), t.row_stride,
        w.see_first - key, w.see_last - key, static_cast<int>(dim), wide);
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void load_keys(int at) {
    load_tile_of<C::kDim>(shared.k, args.params.k, args.params.head_dim, args.wide_k, at);
  }
  __device__ __forceinline__ void load_values(int at) {
    load_tile_of<C::kDimV>(shared.v, args.params.v, args.params.head_dim_v, args.wide_v, at);
  }
  __device__ __forceinline__ int kv_head() const { return work().head / args.queries_per_key_head; }

  __device__ __forceinline__ bool spoiled() const {
    bool any = false;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) any = any || tile::spoiled(r_o[f], work(), row_of(f));
    return any;
  }

  __device__ __forceinline__ void finish() {
    const ForwardParams& p = args.params;
    const tile::Work& w = work();
    uint32_t again = 0;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      if (__any_sync(~0u, tile::spoiled(r_o[f], w, row_of(f)))) {
        again |= 1u << f;
        continue;
      }
      softmax[f].finish();
      tile::RowPair ends;
      ends.first = row_of(f);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (C::kGeneral)
          ends.end(p, w, r, softmax[f].shift(r), softmax[f].sum[r]);
        else
          ends.end(p, w, r, softmax[f].shift(r, args.scale_log2) * kLn2, softmax[f].sum[r]);
        if (C::kGeneral && p.dropout_threshold) ends.factor[r] *= dropout_scale_of(p.dropout_threshold);
      }
      tile::write_rows<T>(p, w, r_o[f], ends, args.wide_o, lane_now());
    }
#pragma unroll 1
    for (int f = 0; again >> f != 0; ++f) {
      if (again >> f & 1) redo_rows(args, shared, warp_row_now() + 16 * f);
    }
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) forward(const __grid_constant__ ForwardArgs args) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<ForwardShared<C>*>(s_bytes);
  find_work(shared.work, args, C::kTileM);
#pragma unroll 1
  while (next_work<C::kTileM, C::kTileN>(shared.work, args)) Forward<C>(args, shared).run();
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_FORWARD_H_
