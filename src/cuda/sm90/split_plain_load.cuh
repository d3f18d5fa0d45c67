// The copies of one warp of the plain split forward: a group of keys a step into a stage of its own, some steps
// ahead, across the ends of units. By the copy engine; key by key where pages do not hold whole groups.
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
      : args_(args), shared_(shared), walk_(walk) {
    begin_piece();
  }

  // The next step of the line into a stage, if there is one and the warp has keys in it.
  __device__ __forceinline__ void issue(uint32_t stage) {
    if (steps_ == 0) return;
    if (key_ < last_) copy(stage);
    key_ += C::kWarps * C::kKeys;
    page_ = next_page_;
    if (--steps_ > 0)
      next_page_ = page_of(key_ + C::kWarps * C::kKeys);
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
      copy_keys(s_stage, block, row);
      return ptx::cp_async_arrive(full);
    }
    if constexpr (C::kQuantized) ptx::cp_async_arrive(full);
    if (lane() % C::kBoxKeys != 0 || lane() >= C::kKeys) return;
    s_stage += lane() / C::kBoxKeys * Box::kPanelBytes;
    load_tile<Box>(s_stage, args_.k, full, ptx::CacheHint::evict_first, row, blockIdx.x, block);
    load_tile<Box>(s_stage + C::kHalfBytes, args_.v, full, ptx::CacheHint::evict_first, row, blockIdx.x, block);
  }

  // Lanes know where a key of the group lies, and tell the lanes that copy it.
  __device__ __forceinline__ void copy_keys(unsigned char* s_stage, int64_t block, int row) const {
    const ForwardParams& p = args_.params;
    constexpr int64_t kBytes = sizeof(T);
    const int64_t k_at =
        kBytes * (block * p.k.batch_stride + row * p.k.row_stride + blockIdx.x * p.k.head_stride);
    const int64_t v_at =
        kBytes * (block * p.v.batch_stride + row * p.v.row_stride + blockIdx.x * p.v.head_stride);
    const uint32_t s_to = ptx::shared_address(s_stage);
#pragma unroll 1
    for (int i = 0; i < C::kKeys; i += kRowsAtOnce) {
      const int key = i + lane() / kChunks, chunk = lane() % kChunks;
      const auto* k = static_cast<const unsigned char*>(p.k.data) + __shfl_sync(~0u, k_at, key) + 16 * chunk;
      const auto* v = static_cast<const unsigned char*>(p.v.data) + __shfl_sync(~0u, v_at, key) + 16 * chunk;
      ptx::cp_async_16(s_to + Tile::chunk_offset(key, chunk), k, 16);
      ptx::cp_async_16(s_to + C::kHalfBytes + Tile::chunk_offset(key, chunk), v, 16);
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
                            blockIdx.x * of[n]->head_stride,
                        4);
  }

  __device__ __forceinline__ void begin_piece() {
    const PlainPiece piece = walk_.next(args_, shared_);
    steps_ = (piece.count + C::kWarps - 1) / C::kWarps;
    if (steps_ == 0) return;
    const PlainSpan& span = walk_.span(args_, shared_, piece.batch);
    const int first = span.first + piece.at;
    last_ = min(span.see_last, (first + piece.count) * C::kKeys);
    key_ = (first + static_cast<int>(threadIdx.x) / 32) * C::kKeys;
    block_ = piece.batch;
    see_first_ = span.see_first;
    see_last_ = span.see_last;
    if constexpr (C::kUniform) return;
    if (args_.page_table) {
      table_ = args_.page_table + piece.batch * args_.table_batch;
      page_ = page_of(key_);
      next_page_ = page_of(key_ + C::kWarps * C::kKeys);
    } else {
      block_ = static_cast<int>(cache_slot(args_.params, piece.batch));
      row_ = span.kv_begin;
    }
  }

  // Of the lane's key of a group: read two steps early. Of keys that no row sees there may be none.
  __device__ __forceinline__ int page_of(int key) const {
    if (C::kUniform || !args_.page_table || key >= last_) return 0;
    key = min(max(key + lane() % C::kKeys, see_first_), see_last_ - 1);
    return table_[args_.page.divide(key) * args_.table_row];
  }

  const PlainArgs& args_;
  PlainShared<C>& shared_;
  PlainWalk<C> walk_;
  const int32_t* table_ = nullptr;
  int page_ = 0, next_page_ = 0, row_ = 0, block_ = 0, see_first_ = 0, see_last_ = 0;
  int key_ = 0, last_ = 0, steps_ = 0;  // of the piece: the warp's next key, its end, steps left
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_LOAD_H_
