// The copies of one warp: 16 keys, K and V, into a stage of its own, 16 bytes a lane, several stages ahead.
#ifndef TILEWISE_CUDA_SM80_SPLIT_LOAD_H_
#define TILEWISE_CUDA_SM80_SPLIT_LOAD_H_

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/sm80/split_schedule.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm80 {

template <typename C>
class Loader {
 public:
  __device__ __forceinline__ Loader(const SplitArgs& args, const Cursor<C>& start) : args_(args), cursor_(start) {
    if (!cursor_.done()) begin_unit();
  }

  // The next step of the line into a stage, if there is one. Closes a group either way, so that groups count steps.
  __device__ __forceinline__ void issue(uint32_t s_stage) {
    if (!cursor_.done()) {
      const Span& s = cursor_.span;
      const int key0 = (s.tile_first + tile_) * C::kTileKeys + warp_key();
      if (key0 < s.see_last && key0 + C::kKeys > s.see_first) {
        if (args_.one_run)
          copy_run(s_stage, key0);
        else
          copy_rows(s_stage, key0);
      }
      advance();
    }
    ptx::cp_async_commit();
  }

 private:
  using T = typename C::Element;
  using Tile = tile::SharedTile<C::kKeys, C::kDim>;
  static constexpr int kChunks = C::kDim / 8;            // 16-byte pieces of a row
  static constexpr int kRowsAtOnce = 32 / kChunks;       // rows of one copy of all lanes
  static constexpr int kCopies = C::kKeys / kRowsAtOnce;

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp_key() { return threadIdx.x / 32 * C::kKeys; }

  __device__ __forceinline__ void begin_unit() {
    const ForwardParams& p = args_.params;
    const int chunk = lane() % kChunks;
    tile_ = cursor_.at;
    end_ = tile_ + cursor_.count(args_);
    // The lane's place: its head and its piece of a row. Keys come on top.
    k_ = static_cast<const T*>(p.k.data) + cursor_.head * p.k.head_stride + 8 * chunk;
    v_ = static_cast<const T*>(p.v.data) + cursor_.head * p.v.head_stride + 8 * chunk;
    if (!p.page_size) {
      const Sequence s = sequence_of(p, cursor_.span.batch);
      slot_ = cache_slot(p, cursor_.span.batch);
      begin_ = s.kv_begin;
    }
    find_page();
  }

  __device__ __forceinline__ void advance() {
    --cursor_.left;
    if (++tile_ < end_) return find_page();
    if (cursor_.done()) return;
    cursor_.next_unit(args_);
    begin_unit();
  }

  // Where the lane's key of the next step lies: read one step early.
  __device__ __forceinline__ void find_page() {
    const ForwardParams& p = args_.params;
    if (!p.page_size) return;
    const Span& s = cursor_.span;
    if (s.see_last == 0) return;
    const int key0 = (s.tile_first + tile_) * C::kTileKeys + warp_key();
    const int key = min(max(key0 + lane() % C::kKeys, s.see_first), s.see_last - 1);
    const int entry = args_.page.divide(key);
    page_ = static_cast<const int32_t*>(p.page_table.data)[s.batch * p.page_table.batch_stride +
                                                           entry * p.page_table.row_stride];
  }

  __device__ __forceinline__ int64_t page() const {
    return min(max(page_, 0), static_cast<int>(args_.params.num_pages) - 1);
  }

  __device__ __forceinline__ int bytes(int dim) const {
    return min(max((dim - lane() % kChunks * 8) * 2, 0), 16);
  }

  // Bytes from the stage's start of copy i of this lane.
  static __device__ __forceinline__ uint32_t place(int i) {
    return Tile::chunk_offset(i * kRowsAtOnce + lane() / kChunks, lane() % kChunks);
  }

  template <typename At>
  __device__ __forceinline__ void copy(uint32_t s_stage, int key0, int dim, const T* base, const At& at) const {
    const Span& s = cursor_.span;
    const bool whole = key0 >= s.see_first && key0 + C::kKeys <= s.see_last && dim == C::kDim;
    const int of_row = bytes(dim);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const T* from = base + at(i);
      int count = 16;
      if (!whole) {  // keys that no row sees may not exist
        const int key = key0 + i * kRowsAtOnce + lane() / kChunks;
        count = key >= s.see_first && key < s.see_last ? of_row : 0;
        if (count == 0) from = static_cast<const T*>(args_.params.q.data);
      }
      ptx::cp_async_16(s_stage + place(i), from, count);
    }
  }

  __device__ __forceinline__ void copy_run(uint32_t s_stage, int key0) const {
    const ForwardParams& p = args_.params;
    const int first = lane() / kChunks;
    int64_t block = slot_, row = begin_ + key0;
    if (p.page_size) {
      block = page();
      row = key0 - args_.page.divide(key0) * static_cast<int>(args_.page.divisor);
    }
    row += first;
    copy(s_stage, key0, static_cast<int>(p.head_dim), k_ + block * p.k.batch_stride + row * p.k.row_stride,
         [&](int i) { return i * kRowsAtOnce * p.k.row_stride; });
    copy(s_stage + C::kHalfBytes, key0, static_cast<int>(p.head_dim_v),
         v_ + block * p.v.batch_stride + row * p.v.row_stride,
         [&](int i) { return i * kRowsAtOnce * p.v.row_stride; });
  }

  // Each lane knows where one key lies, and tells the lanes that copy it.
  __device__ __forceinline__ void copy_rows(uint32_t s_stage, int key0) const {
    const ForwardParams& p = args_.params;
    const int key = key0 + lane() % C::kKeys;
    const int64_t block = page(), row = key - args_.page.divide(key) * static_cast<int>(args_.page.divisor);
    const int64_t k_at = block * p.k.batch_stride + row * p.k.row_stride;
    const int64_t v_at = block * p.v.batch_stride + row * p.v.row_stride;
    const auto of = [&](int64_t at, int i) { return __shfl_sync(~0u, at, i * kRowsAtOnce + lane() / kChunks); };
    copy(s_stage, key0, static_cast<int>(p.head_dim), k_, [&](int i) { return of(k_at, i); });
    copy(s_stage + C::kHalfBytes, key0, static_cast<int>(p.head_dim_v), v_, [&](int i) { return of(v_at, i); });
  }

  const SplitArgs& args_;
  Cursor<C> cursor_;
  const T *k_, *v_;
  int64_t slot_, begin_;
  int tile_, end_, page_ = 0;
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_LOAD_H_
