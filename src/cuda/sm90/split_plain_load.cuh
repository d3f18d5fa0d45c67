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
  using Tile = tile::SharedTile<C::kKeys, C::kDim>;
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }

  __device__ __forceinline__ void copy(uint32_t stage) {
    const int warp = threadIdx.x / 32;
    unsigned char* s_stage = shared_.stage[warp][stage];
    ptx::Mbarrier* full = &shared_.full[warp][stage];
    if (!C::kUniform && args_.gather) return copy_keys(s_stage, full);
    if (lane() != 0) return;
    int row = row_ + key_, block = block_;
    if (!C::kUniform && args_.page_table) {
      block = clamped(page_);
      row = key_ - args_.page.divide(key_) * static_cast<int>(args_.page.divisor);
    }
    load_tile<Tile>(s_stage, args_.k, full, ptx::CacheHint::evict_first, row, blockIdx.x, block);
    load_tile<Tile>(s_stage + C::kHalfBytes, args_.v, full, ptx::CacheHint::evict_first, row, blockIdx.x,
                    block);
  }

  // Lanes know where a key of the group lies, and tell the lanes that copy it.
  __device__ __forceinline__ void copy_keys(unsigned char* s_stage, ptx::Mbarrier* full) const {
    const ForwardParams& p = args_.params;
    const int of_lane = key_ + lane() % C::kKeys;
    const int64_t block = clamped(page_);
    const int64_t row = of_lane - args_.page.divide(of_lane) * static_cast<int>(args_.page.divisor);
    const int64_t k_at = 2 * (block * p.k.batch_stride + row * p.k.row_stride + blockIdx.x * p.k.head_stride);
    const int64_t v_at = 2 * (block * p.v.batch_stride + row * p.v.row_stride + blockIdx.x * p.v.head_stride);
    const uint32_t s_to = ptx::shared_address(s_stage);
#pragma unroll 1
    for (int i = 0; i < C::kKeys; i += 2) {
      const int key = i + lane() / 16, chunk = lane() % 16;
      const auto* k = static_cast<const unsigned char*>(p.k.data) + __shfl_sync(~0u, k_at, key) + 16 * chunk;
      const auto* v = static_cast<const unsigned char*>(p.v.data) + __shfl_sync(~0u, v_at, key) + 16 * chunk;
      ptx::cp_async_16(s_to + Tile::chunk_offset(key, chunk), k, 16);
      ptx::cp_async_16(s_to + C::kHalfBytes + Tile::chunk_offset(key, chunk), v, 16);
    }
    ptx::cp_async_arrive(full);
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
    if constexpr (C::kUniform) return;
    if (args_.page_table) {
      see_first_ = span.see_first;
      see_last_ = span.see_last;
      table_ = args_.page_table + piece.batch * args_.table_batch;
      page_ = page_of(key_);
      next_page_ = page_of(key_ + C::kWarps * C::kKeys);
    } else {
      block_ = static_cast<int>(cache_slot(args_.params, piece.batch));
      row_ = span.kv_begin;
    }
  }

  // Of a group of keys, or of the lane's key: read two steps early. Of keys that no row sees there may be none.
  __device__ __forceinline__ int page_of(int key) const {
    if (C::kUniform || !args_.page_table || key >= last_) return 0;
    if (args_.gather) key += lane() % C::kKeys;
    return table_[args_.page.divide(min(max(key, see_first_), see_last_ - 1)) * args_.table_row];
  }
  __device__ __forceinline__ int clamped(int page) const {
    return min(max(page, 0), static_cast<int>(args_.params.num_pages) - 1);
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
