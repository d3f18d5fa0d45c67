// Scores with softcap and ALiBi become weights, for a warpgroup of either backward kernel.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_SCORE_H_
#define TILEWISE_CUDA_SM90_BACKWARD_SCORE_H_

#include "cuda/sm90/backward_args.cuh"
#include "cuda/tile/key_score.cuh"

namespace tilewise::sm90 {

// The fragment's first key is `key`, its first query `row` of the sequence; this lane's columns begin
// `column` further. s_shift: of this lane's first column.
template <typename T, int kCount, typename Take>
__device__ __forceinline__ void weigh_shaped(const float (&r_s)[kCount], uint32_t (&r_p)[kCount / 2],
                                             const BackwardArgs& args, const tile::KeyWork& w, int head,
                                             int row, int key, int column, const float* s_shift,
                                             const Take& take) {
  const BackwardParams& p = args.params;
  const tile::KeyScore how = {p.scale, p.softcap, p.alibi_slope(w.batch, head),
                              row + w.q_offset + column - key, w.beyond};
  const int first[2] = {w.first_row(key) - row - column, w.first_row(key + 8) - row - column};
  const int last[2] = {w.last_row(key) - row - column, w.last_row(key + 8) - row - column};
  tile::weigh_shaped_keys<T>(r_s, r_p, s_shift, how, first, last, take);
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_SCORE_H_
