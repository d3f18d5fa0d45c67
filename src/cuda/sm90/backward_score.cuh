// What a warpgroup of either backward kernel does with its fragments: scores with softcap or ALiBi become
// weights, dS goes to shared memory, dQ is added to its sums in memory.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_SCORE_H_
#define TILEWISE_CUDA_SM90_BACKWARD_SCORE_H_

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/sm90/backward_args.cuh"
#include "cuda/tile/key_score.cuh"

namespace tilewise::sm90 {

// head: of those of the key head. The fragment's first key is `key`, its first query `row` of the sequence;
// this lane's columns begin `column` further. s_shift: of this lane's first column.
template <typename T, int kCount, typename Take>
__device__ __forceinline__ void weigh_shaped(const float (&r_s)[kCount], uint32_t (&r_p)[kCount / 2],
                                             const BackwardArgs& args, const tile::KeyWork& w, int head,
                                             int row, int key, int column, const float* s_shift,
                                             const Take& take) {
  const BackwardParams& p = args.params;
  const tile::KeyScore how = {p.scale, p.softcap,
                              p.alibi_slope(w.batch, w.head * args.queries_per_key_head + head),
                              row + w.q_offset + column - key, w.beyond};
  const int first[2] = {w.first_row(key) - row - column, w.first_row(key + 8) - row - column};
  const int last[2] = {w.last_row(key) - row - column, w.last_row(key + 8) - row - column};
  tile::weigh_shaped_keys<T>(r_s, r_p, s_shift, how, first, last, take);
}

// A number of each of a lane's columns, of a row of numbers in shared memory.
template <int kCount>
__device__ __forceinline__ void read_rows(float2 (&r_rows)[kCount], const float* s_rows, int lane) {
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    r_rows[j] = *reinterpret_cast<const float2*>(s_rows + 2 * (lane % 4) + 8 * j);
}

// This warp's fragments of dS to the tile [key, query]; row and chunk: of a lane's first 16 bytes.
template <typename ScoreTile, int kCount>
__device__ __forceinline__ void put_ds(uint8_t* s_to, const uint32_t (&r_ds)[kCount], int row, int chunk) {
  const uint32_t s_ds = ptx::shared_address(s_to);
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i)
    ptx::stmatrix_x4(s_ds + ScoreTile::chunk_offset(row, 2 * i + chunk), r_ds[4 * i], r_ds[4 * i + 1],
                     r_ds[4 * i + 2], r_ds[4 * i + 3]);
  ptx::fence_async_shared();
  __syncwarp();
}

// A warp's fragment of dQ; g_to: this lane's sums.
template <int kCount>
__device__ __forceinline__ void add_fragment(float* g_to, const float (&r_dq)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i)
    ptx::add_vector(g_to + 128 * i, r_dq[4 * i], r_dq[4 * i + 1], r_dq[4 * i + 2], r_dq[4 * i + 3]);
}
// The same where nothing has been added yet.
template <int kCount>
__device__ __forceinline__ void store_fragment(float* g_to, const float (&r_dq)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i)
    *reinterpret_cast<float4*>(g_to + 128 * i) =
        make_float4(r_dq[4 * i], r_dq[4 * i + 1], r_dq[4 * i + 2], r_dq[4 * i + 3]);
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_SCORE_H_
