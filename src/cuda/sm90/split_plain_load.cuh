// The copies of one warp of the plain split forward: a group of keys a step into a stage of its own, some
// steps ahead, across the ends of units. By the copy engine; key by key where pages do not hold whole groups.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_LOAD_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_LOAD_H_

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/cp_async_arrive.cuh"
#include "cuda/sm90/load_tile.cuh"
#include "cuda/sm90/split_plain_walk.cuh"

namespace tilewise::sm90 {

template <typename C>
class PlainLoader {
 public:
  __device__ __forceinline__ PlainLoader(const PlainArgs& args, PlainShared<C>& shared,
                                         const PlainWalk<C>& walk)
      : args_(args),
        shared_(shared),
        walk_(walk),
        k_(args.k + key_head<C>() * args.k_head + lane() % kChunks * 16),
        v_(args.v + key_head<C>() * args.v_head + lane() % kChunks * 16) {
    begin_piece();
  }

  // The next step of the line into a stage, if there is one and the warp has keys in it.
  __device__ __forceinline__ void issue(uint32_t stage) {
    if (steps_ == 0) return;
    if (key_ < last_) copy(stage);
    key_ += C::kSharing * C::kKeys;
    if (--steps_ > 0)
      page_ = page_of(key_);
    else if constexpr (!C::kCluster)
      begin_piece();
  }

 private:
  using T = typename C::Stored;
  using Tile = tile::SharedTile<C::kKeys, C::kRowBytes / 2>;
  using Box = tile::SharedTile<C::kBoxKeys, C::kRowBytes / 2>;
  static constexpr int kBoxes = C::kKeys / C::kBoxKeys;
  static_assert(kBoxes == 1 || Tile::kPanels == 1, "rows of a second box follow the first's");
  static constexpr int kChunks = C::kRowBytes / 16, kRowsAtOnce = 32 / kChunks;
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }

  __device__ __forceinline__ void copy(uint32_t stage) {
    const int warp = threadIdx.x / 32;
    unsigned char* s_stage = shared_.stage[warp][stage];
    ptx::Mbarrier* full = &shared_.full[warp][stage];
    const int key = key_ + lane() % C::kKeys;  // the lane's
    int row = row_ + key, block = block_;
    if (!C::kUniform && args_.page_table) {
      block = min(max(page_, 0), static_cast<int>(args_.params.num_pages) - 1);
      row = key - args_.page.divide(key) * static_cast<int>(args_.page.divisor);
    }
    if constexpr (C::kQuantized) copy_scales(shared_.scale[warp][stage], block, key);
    if (!C::kUniform && args_.gather) {
      if (C::kHalves && args_.halves)
        copy_halves(ptx::shared_address(s_stage), block, row);
      else
        copy_keys(s_stage, block, row);
      return ptx::cp_async_arrive(full);
    }
    if constexpr (C::kCluster) {
      if constexpr (C::kQuantized) ptx::cp_async_arrive(full);
      if (lane() % C::kBoxKeys != 0 || lane() >= C::kKeys) return;
      s_stage += lane() / C::kBoxKeys * Box::kPanelBytes;
      load_tile<Box>(s_stage, args_.k_map, full, ptx::CacheHint::evict_first, row, blockIdx.x, block);
      load_tile<Box>(s_stage + C::kHalfBytes, args_.v_map, full, ptx::CacheHint::evict_first, row, blockIdx.x,
                     block);
    } else {
      const int64_t first = row - lane() % C::kKeys + lane() / kChunks;
      const unsigned char* k = k_ + block * args_.k_block + first * args_.k_row;
      const unsigned char* v = v_ + block * args_.v_block + first * args_.v_row;
      const uint32_t s_to = ptx::shared_address(s_stage);
      if (key_ >= see_first_ && key_ + C::kKeys <= see_last_)
        copy_run(s_to, k, v);
      else
        copy_seen(s_to, k, v);
      ptx::cp_async_arrive(full);
    }
  }

  // Where copy i of the lane goes: the xor of the swizzle moves with its row, as stages begin at multiples of
  // 128.
  static __device__ __forceinline__ uint32_t place(uint32_t s_half, int i) {
    const int row = i * kRowsAtOnce;
    return ((s_half + Tile::chunk_offset(lane() / kChunks, lane() % kChunks)) ^ row % 8 * 16) + 128 * row;
  }

  // Keys at one stride, all of them seen. By the lanes and not the copy engine, whose boxes have 128 bytes of
  // a row: rows of 256 bytes it read 6 % slower.
  __device__ __forceinline__ void copy_run(uint32_t s_to, const unsigned char* k,
                                           const unsigned char* v) const {
#pragma unroll
    for (int i = 0; i < C::kKeys / kRowsAtOnce; ++i) {
      ptx::cp_async_16(place(s_to, i), k, 16);
      k += kRowsAtOnce * args_.k_row;
    }
#pragma unroll
    for (int i = 0; i < C::kKeys / kRowsAtOnce; ++i) {
      ptx::cp_async_16(place(s_to + C::kHalfBytes, i), v, 16);
      v += kRowsAtOnce * args_.v_row;
    }
  }

  // Keys that no row sees may not exist, and become zeros.
  __device__ __forceinline__ void copy_seen(uint32_t s_to, const unsigned char* k,
                                            const unsigned char* v) const {
#pragma unroll 1
    for (int i = 0; i < C::kKeys / kRowsAtOnce; ++i) {
      const int key = key_ + kRowsAtOnce * i + lane() / kChunks;
      const int bytes = key >= see_first_ && key < see_last_ ? 16 : 0;
      ptx::cp_async_16(place(s_to, i), bytes ? k : args_.q, bytes);
      ptx::cp_async_16(place(s_to + C::kHalfBytes, i), bytes ? v : args_.q, bytes);
      k += kRowsAtOnce * args_.k_row;
      v += kRowsAtOnce * args_.v_row;
    }
  }

  // Keys at one stride, but for half of them in another page: the lane of a half's first key knows which.
  __device__ __forceinline__ void copy_halves(uint32_t s_to, int block, int row) const {
    constexpr int kHalf = C::kKeys / 2;
    static_assert(kHalf % 8 == 0, "a half begins like its tile");
#pragma unroll
    for (int key = 0; key < C::kKeys; key += kHalf, s_to += 128 * kHalf) {
      const int64_t of = __shfl_sync(~0u, block, key);
      const int64_t first = __shfl_sync(~0u, row, key) + lane() / kChunks;
      const unsigned char* k = k_ + of * args_.k_block + first * args_.k_row;
      const unsigned char* v = v_ + of * args_.v_block + first * args_.v_row;
#pragma unroll
      for (int i = 0; i < kHalf / kRowsAtOnce; ++i) {
        ptx::cp_async_16(place(s_to, i), k, 16);
        ptx::cp_async_16(place(s_to + C::kHalfBytes, i), v, 16);
        k += kRowsAtOnce * args_.k_row;
        v += kRowsAtOnce * args_.v_row;
      }
    }
  }

  // Lanes know where a key of the group lies, and tell the lanes that copy it.
  __device__ __forceinline__ void copy_keys(unsigned char* s_stage, int64_t block, int row) const {
    const int64_t k_at = block * args_.k_block + static_cast<int64_t>(row) * args_.k_row;
    const int64_t v_at = block * args_.v_block + static_cast<int64_t>(row) * args_.v_row;
    const uint32_t s_to = ptx::shared_address(s_stage);
#pragma unroll(C::kQuantized ? 1 : 2)
    for (int i = 0; i < C::kKeys; i += kRowsAtOnce) {
      const int key = i + lane() / kChunks, chunk = lane() % kChunks;
      ptx::cp_async_16(s_to + Tile::chunk_offset(key, chunk), k_ + __shfl_sync(~0u, k_at, key), 16);
      ptx::cp_async_16(s_to + C::kHalfBytes + Tile::chunk_offset(key, chunk),
                       v_ + __shfl_sync(~0u, v_at, key), 16);
    }
  }

  // Of the lane's key; of one that no row sees the nearest's.
  __device__ __forceinline__ void copy_scales(float (&s_scale)[2][C::kKeys], int64_t block, int key) const {
    const ForwardParams& p = args_.params;
    key = min(max(key, see_first_), see_last_ - 1);
    int group = 0;
    if (p.scale_rows) {
      if (args_.page_table) key -= args_.page.divide(key) * static_cast<int>(args_.page.divisor);
      group = args_.scale_rows.divide(key);
    }
    const CacheScales* const of[2] = {&p.k_scales, &p.v_scales};
#pragma unroll
    for (int n = 0; n < 2; ++n)
      if (of[n]->data)
        ptx::cp_async_4(ptx::shared_address(&s_scale[n][lane()]),
                        of[n]->data + block * of[n]->block_stride + group * of[n]->group_stride +
                            key_head<C>() * of[n]->head_stride,
                        4);
  }

  __device__ __forceinline__ void begin_piece() {
    const PlainPiece piece = walk_.next(args_, shared_);
    steps_ = (piece.count + C::kSharing - 1) / C::kSharing;
    if (steps_ == 0) return;
    const PlainSpan& span = walk_.span(args_, shared_, piece.batch);
    const int first = span.first + piece.at;
    last_ = min(span.see_last, (first + piece.count) * C::kKeys);
    key_ = (first + sharer<C>()) * C::kKeys;
    block_ = piece.batch;
    see_first_ = span.see_first;
    see_last_ = span.see_last;
    if constexpr (C::kUniform) return;
    if (args_.page_table) {
      page_ = page_of(key_);
    } else {
      block_ = static_cast<int>(cache_slot(args_.params, piece.batch));
      row_ = span.kv_begin;
    }
  }

  // Of the lane's key of a group: read a step early. Of keys that no row sees there may be none.
  __device__ __forceinline__ int page_of(int key) const {
    if (C::kUniform || !args_.page_table || key >= last_) return 0;
    key = min(max(key + lane() % C::kKeys, see_first_), see_last_ - 1);
    return args_.page_table[block_ * args_.table_batch + args_.page.divide(key) * args_.table_row];
  }

  const PlainArgs& args_;
  PlainShared<C>& shared_;
  PlainWalk<C> walk_;
  const unsigned char *k_, *v_;  // the lane's piece of a row
  int page_ = 0, row_ = 0, block_ = 0, see_first_ = 0, see_last_ = 0;
  int key_ = 0, last_ = 0, steps_ = 0;  // of the piece: the warp's next key, its end, steps left
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_LOAD_H_
