// The copying warpgroup of a wide block: keys and values, a step into each free stage, along the block's
// piece of the line. A warp has some of the keys; eight lanes copy 128 bytes of one, 16 each, panel by panel.
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_LOAD_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_LOAD_H_

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/cp_async_arrive.cuh"
#include "cuda/sm80/split_walk.cuh"
#include "cuda/sm90/split_wide_config.cuh"

namespace tilewise::sm90 {

template <typename C>
class WideLoader {
 public:
  __device__ __forceinline__ WideLoader(const sm80::SplitArgs& args, WideShared<C>& shared)
      : args_(args), shared_(shared), walk_(args, shared) {}

  __device__ __forceinline__ void run() {
    StageRing<C> ring;
    begin_piece();
    tell_first_piece<C>();
#pragma unroll 1
    for (int n = 0;; ++n, ring = ring.next()) {
      if (steps_ == 0) {
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        return;
      }
      if (n >= C::kStages) ptx::mbarrier_wait(&shared_.empty[ring.stage], ring.parity ^ 1);
      copy(ptx::shared_address(shared_.stage[ring.stage]));
      key_ += C::kKeys;
      const bool ends = --steps_ == 0;
      if (ends) begin_piece();  // before the stage is filled
      ptx::cp_async_arrive(&shared_.full[ring.stage]);
      if (!ends) read_pages();
    }
  }

 private:
  using T = typename C::Element;
  // Keys of a warp, and of a lane: 4 apart.
  static constexpr int kOfWarp = C::kKeys / 4, kOfLane = kOfWarp / 4;

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }

  __device__ __forceinline__ void begin_piece() {
    const ForwardParams& p = args_.params;
    const sm80::Piece piece = walk_.next(args_, shared_);
    __threadfence_block();  // before the arrival that tells of it
    const sm80::Span& span = piece.span;
    steps_ = piece.count;
    if (steps_ == 0) return;
    see_first_ = span.see_first;
    see_last_ = span.see_last;
    key_ = (span.first + piece.at) * C::kKeys + static_cast<int>(threadIdx.x) / 32 * kOfWarp + lane() / 8;
    k_ = static_cast<const T*>(p.k.data) + piece.head * p.k.head_stride + lane() % 8 * 8;
    v_ = static_cast<const T*>(p.v.data) + piece.head * p.v.head_stride + lane() % 8 * 8;
    if (p.page_size) {
      table_ = static_cast<const int32_t*>(p.page_table.data) + span.band.batch * p.page_table.batch_stride;
      read_pages();
    } else {
      const int64_t slot = cache_slot(p, span.band.batch);
      k_ += slot * p.k.batch_stride + span.band.kv_begin * p.k.row_stride;
      v_ += slot * p.v.batch_stride + span.band.kv_begin * p.v.row_stride;
    }
  }

  // Where the lane's next keys lie: while the last ones are copied.
  __device__ __forceinline__ void read_pages() {
    const ForwardParams& p = args_.params;
    if (!p.page_size || see_last_ == 0) return;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int key = min(max(key_ + 4 * i, see_first_), see_last_ - 1);
      page_[i] = table_[args_.page.divide(key) * p.page_table.row_stride];
    }
  }

  __device__ __forceinline__ void copy(uint32_t s_stage) const {
    const ForwardParams& p = args_.params;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int key = key_ + 4 * i;
      const bool seen = key >= see_first_ && key < see_last_;
      int row = key;
      const T *k = k_, *v = v_;
      if (p.page_size) {
        const int page = min(max(page_[i], 0), static_cast<int>(p.num_pages) - 1);
        row = key - args_.page.divide(key) * static_cast<int>(args_.page.divisor);
        k += page * p.k.batch_stride;
        v += page * p.v.batch_stride;
      }
      k += row * p.k.row_stride;
      v += row * p.v.row_stride;
      // Keys that no row sees may not exist: zeros.
      if (!seen) k = v = static_cast<const T*>(p.q.data);
      const int in_tile = static_cast<int>(threadIdx.x) / 32 * kOfWarp + lane() / 8 + 4 * i;
      copy_row<C::kDim, typename C::KTile>(s_stage, k, in_tile, seen, static_cast<int>(p.head_dim));
      if constexpr (!C::kValuesInKeys)
        copy_row<C::kDimV, typename C::VTile>(s_stage + C::kValuesAt, v, in_tile, seen,
                                              static_cast<int>(p.head_dim_v));
    }
  }

  template <int kColumns, typename Tile>
  __device__ __forceinline__ void copy_row(uint32_t s_tile, const T* from, int row, bool seen,
                                           int columns) const {
    const uint32_t to = s_tile + Tile::chunk_offset(row, lane() % 8);
    if (args_.full_rows) {
      const int bytes = seen ? 16 : 0;
#pragma unroll
      for (int i = 0; i < kColumns / 64; ++i)
        ptx::cp_async_16(to + i * Tile::kPanelBytes, from + 64 * i, bytes);
    } else {
      const int left = seen ? 2 * (columns - lane() % 8 * 8) : 0;
#pragma unroll
      for (int i = 0; i < kColumns / 64; ++i) {
        const int bytes = min(max(left - 128 * i, 0), 16);
        ptx::cp_async_16(to + i * Tile::kPanelBytes,
                         bytes > 0 ? from + 64 * i : static_cast<const T*>(args_.params.q.data), bytes);
      }
    }
  }

  const sm80::SplitArgs& args_;
  WideShared<C>& shared_;
  sm80::Walk<C, WideShared<C>> walk_;
  const T *k_ = nullptr, *v_ = nullptr;  // the lane's columns of the first key, or of the first page's
  const int32_t* table_ = nullptr;
  int page_[kOfLane] = {};
  int see_first_ = 0, see_last_ = 0;  // of the unit
  int key_ = 0, steps_ = 0;           // the lane's first key of the next step; steps left
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_LOAD_H_
