// The copies of one warp of the plain split forward: as in sm80/split_load.cuh.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_LOAD_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_LOAD_H_

#include "cuda/ptx/cp_async.cuh"
#include "cuda/sm90/split_plain_walk.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::sm90 {

// Walks a block's piece of the line, unit by unit. Of the copies (kFirst), and once more, later, of the
// products.
template <typename C, bool kFirst>
class PlainWalk {
 public:
  int count = 0, at = 0;  // groups of the unit in hand, from its `at`-th on; 0: there is no more
  int begin = 0;          // the unit's first group on the line

  __device__ __forceinline__ PlainWalk(const PlainPlace& place)
      : place_(place), slot_(C::kCluster ? 0 : -1), batch_(place.entry) {}

  __device__ __forceinline__ void next(const PlainArgs& args, PlainShared<C>& shared) {
    count = 0;
    if (place_.left <= 0) return;
    if constexpr (!C::kUniform && !C::kCluster) {
      slot_ = slot_ + 1 == PlainShared<C>::kSpans ? 0 : slot_ + 1;
      if constexpr (kFirst) {
        // By all warps the same, at different times: no empty one may stand there in between.
        PlainSpan span;
        do find_span(args, place_.entry++, &span);
        while (span.groups == 0);
        --place_.entry;
        shared.spans[slot_] = span;
        __syncwarp();
      }
    }
    at = place_.at;
    batch_ = place_.entry++;
    const int groups = span(args, shared).groups;
    count = min(place_.left, groups - at);
    begin = place_.position - at;
    place_.position += count;
    place_.left -= count;
    place_.at = 0;
  }
  __device__ __forceinline__ const PlainSpan& span(const PlainArgs& args, const PlainShared<C>& shared) const {
    if constexpr (C::kUniform) return args.span;
    return shared.spans[slot_];
  }
  __device__ __forceinline__ int batch(const PlainShared<C>& shared) const {
    if constexpr (C::kUniform) return batch_;
    return shared.spans[slot_].batch;
  }
  __device__ __forceinline__ int share() const { return place_.share; }

 private:
  PlainPlace place_;
  int slot_, batch_;
};

template <typename C>
class PlainLoader {
 public:
  __device__ __forceinline__ PlainLoader(const PlainArgs& args, PlainShared<C>& shared,
                                         const PlainPlace& place)
      : args_(args), shared_(shared), walk_(place) {
    begin_piece();
  }

  // The next step of the line into a stage, if there is one. Closes a group either way: groups count steps.
  __device__ __forceinline__ void issue(uint32_t s_stage) {
    if (walk_.count) {
      if (key_ < last_) {
        const unsigned char *k = k_, *v = v_;
        if (!C::kUniform && args_.page_table) {
          const int64_t page = min(max(page_, 0), static_cast<int>(args_.params.num_pages) - 1);
          const int row = key_ - args_.page.divide(key_) * static_cast<int>(args_.page.divisor);
          k += page * args_.k_block + static_cast<int64_t>(row) * args_.k_row;
          v += page * args_.v_block + static_cast<int64_t>(row) * args_.v_row;
        } else {
          k += static_cast<int64_t>(key_) * args_.k_row;
          v += static_cast<int64_t>(key_) * args_.v_row;
        }
        if (key_ >= see_first_ && key_ + C::kKeys <= see_last_)
          copy_run(s_stage, k, v);
        else
          copy_seen(s_stage, k, v);
      }
      key_ += C::kWarps * C::kKeys;
      page_ = next_page_;
      if (--steps_ > 0)
        next_page_ = page_of(key_ + C::kWarps * C::kKeys);
      else if constexpr (C::kCluster)
        walk_.count = 0;
      else
        begin_piece();
    }
    ptx::cp_async_commit();
  }

 private:
  using Tile = tile::SharedTile<C::kKeys, C::kDim>;
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }

  __device__ __forceinline__ void begin_piece() {
    walk_.next(args_, shared_);
    if (walk_.count == 0) return;
    const PlainSpan& span = walk_.span(args_, shared_);
    const int batch = walk_.batch(shared_), first = span.first + walk_.at;
    see_first_ = span.see_first;
    see_last_ = span.see_last;
    last_ = min(see_last_, (first + walk_.count) * C::kKeys);
    key_ = (first + static_cast<int>(threadIdx.x) / 32) * C::kKeys;
    steps_ = (walk_.count + C::kWarps - 1) / C::kWarps;
    // The lane's place: its head and its piece of a row. Keys come on top.
    k_ = args_.k + blockIdx.x * args_.k_head + lane() / 16 * args_.k_row + lane() % 16 * 16;
    v_ = args_.v + blockIdx.x * args_.v_head + lane() / 16 * args_.v_row + lane() % 16 * 16;
    if (!C::kUniform && args_.page_table) {
      table_ = args_.page_table + batch * args_.table_batch;
      page_ = page_of(key_);
      next_page_ = page_of(key_ + C::kWarps * C::kKeys);
      return;
    }
    int64_t slot = batch;
    if constexpr (!C::kUniform) {
      slot = cache_slot(args_.params, batch);
      k_ += static_cast<int64_t>(span.kv_begin) * args_.k_row;
      v_ += static_cast<int64_t>(span.kv_begin) * args_.v_row;
    }
    k_ += slot * args_.k_block;
    v_ += slot * args_.v_block;
  }

  // Of a group of keys: read two steps early.
  __device__ __forceinline__ int page_of(int key) const {
    if (C::kUniform || !args_.page_table || key >= last_) return 0;
    return table_[args_.page.divide(key) * args_.table_row];
  }

  // Where rows 2 i and on go: the xor of the swizzle moves by 32 bytes, as stages begin at multiples of 128.
  static __device__ __forceinline__ uint32_t place(uint32_t s_half, int i) {
    return ((s_half + Tile::chunk_offset(lane() / 16, lane() % 16)) ^ i % 4 * 32) + 256 * i;
  }

  __device__ __forceinline__ void copy_run(uint32_t s_stage, const unsigned char* k,
                                           const unsigned char* v) const {
#pragma unroll
    for (int i = 0; i < C::kKeys / 2; ++i) {
      ptx::cp_async_16(place(s_stage, i), k, 16);
      k += 2 * args_.k_row;
    }
#pragma unroll
    for (int i = 0; i < C::kKeys / 2; ++i) {
      ptx::cp_async_16(place(s_stage + C::kHalfBytes, i), v, 16);
      v += 2 * args_.v_row;
    }
  }

  // Keys that no row sees may not exist, and become zeros.
  __device__ __forceinline__ void copy_seen(uint32_t s_stage, const unsigned char* k,
                                            const unsigned char* v) const {
#pragma unroll 1
    for (int i = 0; i < C::kKeys / 2; ++i) {
      const int key = key_ + 2 * i + lane() / 16, bytes = key >= see_first_ && key < see_last_ ? 16 : 0;
      ptx::cp_async_16(place(s_stage, i), bytes ? k : args_.q, bytes);
      ptx::cp_async_16(place(s_stage + C::kHalfBytes, i), bytes ? v : args_.q, bytes);
      k += 2 * args_.k_row;
      v += 2 * args_.v_row;
    }
  }

  const PlainArgs& args_;
  PlainShared<C>& shared_;
  PlainWalk<C, true> walk_;
  const unsigned char *k_ = nullptr, *v_ = nullptr;
  const int32_t* table_ = nullptr;
  int page_ = 0, next_page_ = 0, see_first_ = 0, see_last_ = 0;
  int key_ = 0, last_ = 0, steps_ = 0;  // of the piece: the warp's next key, its end, steps left
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_LOAD_H_
