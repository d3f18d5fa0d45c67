// The copies of one warp: 16 keys, K and V, into a stage of its own, 16 bytes a lane, several stages ahead.
// They walk along the block's piece of the line; what they find out about a unit is left for the products,
// which follow.
#ifndef TILEWISE_CUDA_SM80_SPLIT_LOAD_H_
#define TILEWISE_CUDA_SM80_SPLIT_LOAD_H_

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/sm80/split_walk.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm80 {

template <typename C>
class Loader {
 public:
  __device__ __forceinline__ Loader(const SplitArgs& args, SplitShared<C>& shared)
      : args_(args), shared_(shared), walk_(args, shared) {
    begin_piece();
  }

  // The next step of the line into a stage, if there is one. Closes a group either way: groups count steps.
  __device__ __forceinline__ void issue(uint32_t s_stage, float (*s_scale)[C::kKeys]) {
    if (!ended_) {
      const int key0 = key_;
      if (key0 < last_ && key0 + C::kKeys > see_first_) {
        const bool whole = key0 >= see_first_ && key0 + C::kKeys <= see_last_ && args_.full_rows;
        if (!whole)
          copy_rows<false>(s_stage, key0);
        else if (args_.one_run)
          copy_run(s_stage, key0);
        else
          copy_rows<true>(s_stage, key0);
        if constexpr (C::kQuantized) copy_scales(s_scale, key0);
      }
      key_ += C::kTileKeys;
      page_ = next_page_;
      if (--steps_ == 0)
        begin_piece();  // now, so that its first pages are known a step later
      else
        next_page_ = page_of(key_ + C::kTileKeys);
    }
    ptx::cp_async_commit();
  }

 private:
  using T = typename C::Stored;
  using Tile = tile::SharedTile<C::kKeys, C::kRowBytes / 2>;
  static constexpr int kChunks = C::kRowBytes / 16, kOfChunk = 16 / sizeof(T);  // 16-byte pieces of a row
  static constexpr int kRowsAtOnce = 32 / kChunks;  // rows of one copy of all lanes
  static constexpr int kCopies = C::kKeys / kRowsAtOnce;

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ void begin_piece() {
    const ForwardParams& p = args_.params;
    const Piece piece = walk_.next(args_, shared_);
    const Span& span = piece.span;
    ended_ = piece.count == 0;
    if (ended_) return;
    batch_ = span.band.batch;
    see_first_ = span.see_first;
    see_last_ = span.see_last;
    last_ = piece_last<C>(span, piece.at, piece.count);
    key_ = (span.first + piece.at + static_cast<int>(threadIdx.x) / 32) * C::kKeys;
    steps_ = steps_of<C>(piece.count);
    // The lane's place: its head and its piece of a row. Keys come on top.
    k_ = static_cast<const T*>(p.k.data) + piece.head * p.k.head_stride + lane() % kChunks * kOfChunk;
    v_ = static_cast<const T*>(p.v.data) + piece.head * p.v.head_stride + lane() % kChunks * kOfChunk;
    if constexpr (C::kQuantized) scale_head_ = piece.head;
    if (!p.page_size) {
      slot_ = cache_slot(p, batch_);
      begin_ = span.band.kv_begin;
    }
    page_ = page_of(key_);
    next_page_ = page_of(key_ + C::kTileKeys);
  }

  // Where the lane's key of a group lies: read two steps early.
  __device__ __forceinline__ int page_of(int key0) const {
    const ForwardParams& p = args_.params;
    if (!p.page_size || see_last_ == 0) return 0;
    const int key = min(max(key0 + lane() % C::kKeys, see_first_), see_last_ - 1);
    return static_cast<const int32_t*>(p.page_table.data)[batch_ * p.page_table.batch_stride +
                                                          args_.page.divide(key) * p.page_table.row_stride];
  }

  // Indices of a key on the first two dimensions of k and v; in pages, of the page that was read for it.
  __device__ __forceinline__ void find_key(int key, int64_t* block, int64_t* row) const {
    const ForwardParams& p = args_.params;
    *block = slot_;
    *row = begin_ + key;
    if (!p.page_size) return;
    *block = min(max(page_, 0), static_cast<int>(p.num_pages) - 1);
    *row = key - args_.page.divide(key) * static_cast<int>(args_.page.divisor);
  }

  // From the stage's start, of copy i of this lane.
  static __device__ __forceinline__ uint32_t place(int i) {
    return Tile::chunk_offset(i * kRowsAtOnce + lane() / kChunks, lane() % kChunks);
  }

  // Keys at one stride, all of them seen.
  __device__ __forceinline__ void copy_run(uint32_t s_stage, int key0) const {
    const ForwardParams& p = args_.params;
    int64_t block, row;
    find_key(key0, &block, &row);
    row += lane() / kChunks;
    const T* k = k_ + block * p.k.batch_stride + row * p.k.row_stride;
    const T* v = v_ + block * p.v.batch_stride + row * p.v.row_stride;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      ptx::cp_async_16(s_stage + place(i), k, 16);
      k += kRowsAtOnce * p.k.row_stride;
    }
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      ptx::cp_async_16(s_stage + C::kHalfBytes + place(i), v, 16);
      v += kRowsAtOnce * p.v.row_stride;
    }
  }

  // Each lane knows where one key lies, and tells the lanes that copy it. Keys that no row sees may not
  // exist.
  template <bool kWhole>
  __device__ __forceinline__ void copy_rows(uint32_t s_stage, int key0) const {
    const ForwardParams& p = args_.params;
    int64_t block, row;
    find_key(key0 + lane() % C::kKeys, &block, &row);
    const int64_t k_at = block * p.k.batch_stride + row * p.k.row_stride;
    const int64_t v_at = block * p.v.batch_stride + row * p.v.row_stride;
    constexpr int kBytes = sizeof(T);
    const int left_k = static_cast<int>(p.head_dim) - lane() % kChunks * kOfChunk;
    const int left_v = static_cast<int>(p.head_dim_v) - lane() % kChunks * kOfChunk;
#pragma unroll 4
    for (int i = 0; i < kCopies; ++i) {
      const int row_of_copy = i * kRowsAtOnce + lane() / kChunks, key = key0 + row_of_copy;
      const T* k = k_ + __shfl_sync(~0u, k_at, row_of_copy);
      const T* v = v_ + __shfl_sync(~0u, v_at, row_of_copy);
      int of_k = 16, of_v = 16;
      if (!kWhole) {
        const bool seen = key >= see_first_ && key < see_last_;
        of_k = seen ? min(max(kBytes * left_k, 0), 16) : 0;
        of_v = seen ? min(max(kBytes * left_v, 0), 16) : 0;
        if (of_k == 0) k = static_cast<const T*>(p.q.data);
        if (of_v == 0) v = static_cast<const T*>(p.q.data);
      }
      ptx::cp_async_16(s_stage + place(i), k, of_k);
      ptx::cp_async_16(s_stage + C::kHalfBytes + place(i), v, of_v);
    }
  }

  // Each lane for a key, of K or V or both; the nearest seen one's where it is not seen.
  __device__ __forceinline__ void copy_scales(float (*s_scale)[C::kKeys], int key0) const {
    const ForwardParams& p = args_.params;
    const int key = min(max(key0 + lane() % C::kKeys, see_first_), see_last_ - 1);
    int64_t block, row;
    find_key(key, &block, &row);
    const int group = p.scale_rows ? args_.scale_rows.divide(static_cast<int>(row) - begin_) : 0;
#pragma unroll
    for (int n = 0; n < 2 * C::kKeys; n += 32) {
      const bool of_v = n + lane() >= C::kKeys;
      const CacheScales& scales = of_v ? p.v_scales : p.k_scales;
      if (!scales.data) continue;
      ptx::cp_async_4(ptx::shared_address(&s_scale[of_v][lane() % C::kKeys]),
                      scales.data + block * scales.block_stride + group * scales.group_stride +
                          scale_head_ * scales.head_stride,
                      4);
    }
  }

  const SplitArgs& args_;
  SplitShared<C>& shared_;
  Walk<C, SplitShared<C>> walk_;
  const T *k_ = nullptr, *v_ = nullptr;
  int64_t slot_ = 0;
  int begin_ = 0, page_ = 0, next_page_ = 0;
  int batch_ = 0, see_first_ = 0, see_last_ = 0;  // of the unit
  int key_ = 0, last_ = 0, steps_ = 0;            // of the piece: the warp's next key, its end, steps left
  int scale_head_ = 0;
  bool ended_ = false;
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_LOAD_H_
