// The copies of a wide block: a tile of keys and values a step into the next stage, by all warps, each some
// of the keys, 16 bytes a lane.
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_LOAD_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_LOAD_H_

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/split_wide_config.cuh"

namespace tilewise::sm90 {

template <typename C>
class WideLoader {
 public:
  __device__ __forceinline__ WideLoader(const sm80::SplitArgs& args, WideShared<C>& shared)
      : args_(args), shared_(shared) {
    shared.walk[warp()] = sm80::Walk<C, WideShared<C>>(args, shared);
    begin_piece();
  }

  // The next step of the line, if there is one. Closes a group either way: groups count steps.
  __device__ __forceinline__ void issue(uint32_t s_stage) {
    if (!ended_) {
      const ForwardParams& p = args_.params;
      const int key = key_ + lane() % kOfWarp;
      int64_t block = slot_, row = begin_ + key;
      if (p.page_size) {
        block = min(max(page_, 0), static_cast<int>(p.num_pages) - 1);
        row = key - args_.page.divide(key) * static_cast<int>(args_.page.divisor);
      }
      copy<C::kDim, typename C::KTile>(s_stage, k_, block * p.k.batch_stride + row * p.k.row_stride,
                                       static_cast<int>(p.head_dim));
      if constexpr (!C::kValuesInKeys)
        copy<C::kDimV, typename C::VTile>(s_stage + C::kValuesAt, v_,
                                          block * p.v.batch_stride + row * p.v.row_stride,
                                          static_cast<int>(p.head_dim_v));
      key_ += C::kKeys;
      page_ = next_page_;
      if (--steps_ == 0)
        begin_piece();  // now, so that its first pages are known a step later
      else
        next_page_ = page_of(key_ + C::kKeys);
    }
    ptx::cp_async_commit();
  }

 private:
  using T = typename C::Element;
  static constexpr int kOfWarp = C::kKeys / C::kWarps;  // keys

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }

  __device__ __forceinline__ void begin_piece() {
    const ForwardParams& p = args_.params;
    const sm80::Piece piece = shared_.walk[warp()].next(args_, shared_);
    const sm80::Span& span = piece.span;
    ended_ = piece.count == 0;
    if (ended_) return;
    batch_ = span.band.batch;
    see_first_ = span.see_first;
    see_last_ = span.see_last;
    key_ = (span.first + piece.at) * C::kKeys + warp() * kOfWarp;
    steps_ = piece.count;
    k_ = static_cast<const T*>(p.k.data) + piece.head * p.k.head_stride;
    v_ = static_cast<const T*>(p.v.data) + piece.head * p.v.head_stride;
    if (!p.page_size) {
      slot_ = cache_slot(p, batch_);
      begin_ = span.band.kv_begin;
    }
    page_ = page_of(key_);
    next_page_ = page_of(key_ + C::kKeys);
  }

  // Where the lane's key of a step lies: read two steps early.
  __device__ __forceinline__ int page_of(int key0) const {
    const ForwardParams& p = args_.params;
    if (!p.page_size || see_last_ == 0) return 0;
    const int key = min(max(key0 + lane() % kOfWarp, see_first_), see_last_ - 1);
    return static_cast<const int32_t*>(p.page_table.data)[batch_ * p.page_table.batch_stride +
                                                          args_.page.divide(key) * p.page_table.row_stride];
  }

  // Rows of the warp's keys; `at`: where this lane's key begins. Keys that no row sees may not exist: zeros.
  template <int kColumns, typename Tile>
  __device__ __forceinline__ void copy(uint32_t s_tile, const T* g_head, int64_t at, int columns) const {
    constexpr int kChunks = kColumns / 8, kAll = kOfWarp * kChunks, kAtOnce = kAll % 96 == 0 ? 3 : 4;
    // Afresh: what hangs on it would else be kept from step to step, in more registers than there are.
    const int thread = ptx::thread_afresh(), lane = thread % 32, key0 = thread / 32 * kOfWarp;
#pragma unroll kAtOnce
    for (int i = 0; i < kAll; i += 32) {
      const int n = i + lane, row = kChunks % 32 == 0 ? i / kChunks : n / kChunks, chunk = n - row * kChunks;
      const int64_t of_row = __shfl_sync(~0u, at, row % kOfWarp);
      if (kAll % 32 != 0 && n >= kAll) continue;
      const int key = key_ + row;
      const bool seen = key >= see_first_ && key < see_last_;
      const int bytes = seen ? min(max(2 * (columns - 8 * chunk), 0), 16) : 0;
      const T* from = bytes > 0 ? g_head + of_row + 8 * chunk : static_cast<const T*>(args_.params.q.data);
      ptx::cp_async_16(s_tile + Tile::chunk_offset(key0 + row, chunk), from, bytes);
    }
  }

  const sm80::SplitArgs& args_;
  WideShared<C>& shared_;
  const T *k_ = nullptr, *v_ = nullptr;  // of the head
  int64_t slot_ = 0;
  int begin_ = 0, page_ = 0, next_page_ = 0;
  int batch_ = 0, see_first_ = 0, see_last_ = 0;  // of the unit
  int key_ = 0, steps_ = 0;                       // the warp's first key of the next step; steps left
  bool ended_ = false;
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_LOAD_H_
