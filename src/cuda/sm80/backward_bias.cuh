// dbias of the sm_80 backward: a block owns a tile of the bias (one row or column where the bias repeats over
// it) and adds up dS of all sequences, heads and tiles that it repeats over, in ascending order, in fp32
// registers; it writes once.
//
//   S = Q K^T, P = e^(S - lse)      dP = dO V^T, dS = P o (dP - D)
//
// Roles. Four warps alike, 16 queries each. Shared memory: one tile each of Q, dO, K and V; two blocks share
// a multiprocessor, and one's copies run under the other's products.
//
// Invariant. A hidden pair's dS is zero by selection, so what no row sees may be anything.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_BIAS_H_
#define TILEWISE_CUDA_SM80_BACKWARD_BIAS_H_

#include "cuda/sm80/backward_queries.cuh"

namespace tilewise::sm80 {

template <typename C>
struct BackwardBias {
  using T = typename C::Element;
  static constexpr int kScores = C::kTileN / 2, kPitch = C::kTileN;
  static_assert(C::kFragments == 1 && C::kStages == 1 &&
                C::kTileM * kPitch * 4 <= C::QTile::kBytes + C::OTile::kBytes);

  const BackwardArgs& args;
  QueryShared<C>& shared;
  BackwardQueries<C> tiles;                         // its loads and products
  const int own_batch, own_head, own_row, own_key;  // of the bias; rows and keys in tiles
  float sum[kScores];

  __device__ __forceinline__ BackwardBias(const BackwardArgs& a, QueryShared<C>& s, int batch, int head,
                                          int row, int key)
      : args(a), shared(s), tiles(a, s), own_batch(batch), own_head(head), own_row(row), own_key(key) {}

  __device__ __forceinline__ void run() {
    const BackwardParams& p = args.params;
#pragma unroll
    for (int i = 0; i < kScores; ++i) sum[i] = 0.0f;
    const bool all_batches = p.bias_shape[0] == 1, all_heads = p.bias_shape[1] == 1;
    const int batches = all_batches ? static_cast<int>(p.batch) : own_batch + 1;
    const int heads = all_heads ? static_cast<int>(p.heads_q) : own_head + 1;
#pragma unroll 1
    for (int batch = all_batches ? 0 : own_batch; batch < batches; ++batch) {
#pragma unroll 1
      for (int head = all_heads ? 0 : own_head; head < heads; ++head) {
#pragma unroll 1
        for (int row = own_row; begin(batch, head, row); ++row) {
          add_rows_of_keys();
          if (p.bias_shape[2] != 1) break;
        }
      }
    }
    write();
  }

 private:
  // Queries of tile `row`; false where the sequence ends before.
  __device__ __forceinline__ bool begin(int batch, int head, int row) {
    const bool exists = begin_work(shared.work, [&](tile::Work& w) {
      return tile::make_work<C::kTileM, C::kTileN>(w, args.params, batch, head, row);
    });
    if (!exists) return false;
    make_general_work(shared, args.params);
    if (args.params.bias_shape[3] == 1) return true;
    if (threadIdx.x == 0) {
      tile::Work& w = shared.work;
      w.tile_first = max(w.tile_first, own_key);
      w.tile_last = min(w.tile_last, own_key + 1);
    }
    __syncthreads();
    return true;
  }

  __device__ __forceinline__ void add_rows_of_keys() {
    Found at = find_tile(shared, args.params, shared.work.tile_last);
    if (at.tile < 0) return;
    tiles.begin_rows();
    const int row = tiles.warp_row_now() + tiles.lane_now() / 4;
    const FragmentQueries<QueryShared<C>> of_rows(args.params, tiles.rows, shared, row);
#pragma unroll 1
    while (at.tile >= 0) {
      tiles.load_keys(at.tile, 0);
      const Found next = find_tile(shared, args.params, at.tile);
      ptx::cp_async_wait<0>();
      __syncthreads();
      float r_ds[1][kScores];
      tiles.template general_gradients<GradientOf::bias>(r_ds, of_rows, at, 0, true);
#pragma unroll
      for (int i = 0; i < kScores; ++i) sum[i] += r_ds[0][i];
      __syncthreads();
      at = next;
    }
  }

  // Rows and columns that are one element are added up by the thread that writes it.
  __device__ __forceinline__ void write() {
    const BackwardParams& p = args.params;
    auto* s_sum = reinterpret_cast<float*>(shared.q);  // and dO behind it
    const int lane = tiles.lane_now(), row = tiles.warp_row_now() + lane / 4, column = 2 * (lane % 4);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      s_sum[(row + ByQueries::query_step(i)) * kPitch + column + ByQueries::key_step(i)] = sum[i];
    __syncthreads();
    const int height = p.bias_shape[2] == 1 ? C::kTileM : 1, width = p.bias_shape[3] == 1 ? C::kTileN : 1;
    const int across = C::kTileN / width, all = C::kTileM / height * across;
    const int64_t base = own_batch * p.dbias.batch_stride + own_head * p.dbias.head_stride;
    const int64_t first_row = static_cast<int64_t>(own_row) * C::kTileM;
    const int64_t first_key = static_cast<int64_t>(own_key) * C::kTileN;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < all; at += C::kThreads) {
      const int r = at / across, c = at % across;
      if (first_row + r >= p.bias_shape[2] || first_key + c >= p.bias_shape[3]) continue;
      float total = 0.0f;
      for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) total += s_sum[(r * height + y) * kPitch + c * width + x];
      cuda::store(p.dbias.data, p.dbias.dtype,
                  base + (first_row + r) * p.dbias.row_stride + (first_key + c) * p.dbias.key_stride, total);
    }
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    backward_bias(const __grid_constant__ BackwardArgs args, int row_tiles, int key_tiles, int64_t total) {
  extern __shared__ __align__(tile::kSwizzleAlignment) uint8_t s_bytes[];
  auto& shared = *reinterpret_cast<QueryShared<C>*>(s_bytes);
  const auto heads = static_cast<int>(args.params.bias_shape[1]);
#pragma unroll 1
  for (int64_t task = blockIdx.x; task < total; task += gridDim.x) {
    const auto key = static_cast<int>(task % key_tiles), row = static_cast<int>(task / key_tiles % row_tiles);
    const auto of_heads = static_cast<int>(task / key_tiles / row_tiles);
    BackwardBias<C>(args, shared, of_heads / heads, of_heads % heads, row, key).run();
  }
}

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_BACKWARD_BIAS_H_
