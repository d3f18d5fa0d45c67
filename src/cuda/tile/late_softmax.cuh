// Online softmax that takes the weights of a tile first and looks at them afterwards: maxima are taken only
// where weights have grown. The fragment and its rows are those of tile/softmax.cuh.
//
// Weights are powers of 2 of score - held. `held` is the maximum of the first tile in which the row saw a
// key, and moves up to a later maximum where a lane's weights of a tile add up to more than the row's room: 4
// times the sum of the row's weights when held was set, and 2^8 at most. So no maxima, shuffles and votes
// stand between the scores and their exponentials. A key with nearly all of the weight must not lag behind:
// its weight is 1 where held follows, which rounds to itself, and would be some number that does not. fp16
// holds 2^8, and sums of products stay small.
//
// All of it hangs on the row alone, so its bits depend on no neighbour.
#ifndef TILEWISE_CUDA_TILE_LATE_SOFTMAX_H_
#define TILEWISE_CUDA_TILE_LATE_SOFTMAX_H_

#include "cuda/tile/softmax.cuh"

namespace tilewise::tile {

constexpr float kLargestWeight = 0x1p126f;

struct LateSoftmax {
  static constexpr float kFresh = 1024.0f;   // a room that is to be set when the tile has been added
  static constexpr float kUnseen = 2048.0f;  // of a row that has seen no key

  float held[2] = {0.0f, 0.0f};  // exponents of 2
  float room[2] = {kUnseen, kUnseen};
  float sum[2] = {0.0f, 0.0f};

  // What weights are taken from, in exponents of 2.
  __device__ __forceinline__ float shift(int r, float) const { return held[r]; }

  // Takes held from the maxima of this tile of scores: of rows that see their first keys here, or `all` rows.
  template <int kCount>
  __device__ __forceinline__ Decay look(const float (&r_s)[kCount], float scale_log2, bool all) {
    float peak[2];
    row_peaks(peak, r_s);
    Decay decay;
    decay.needed = all;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = __fmul_rn(peak[r], scale_log2), before = held[r];
      const bool begins = room[r] == kUnseen && peak[r] != kMinusInfinity;
      const bool looks = begins || (all && room[r] != kUnseen);
      held[r] = begins || (looks && top > before) ? top : before;
      room[r] = looks ? kFresh : room[r];
      decay.factor[r] = begins ? 1.0f : ptx::exp2_approx(__fsub_rn(before, held[r]));
      sum[r] *= decay.factor[r];
    }
    return decay;
  }

  // While a product is awaited: its latency is hidden then. True where some row of the warp has seen no key.
  __device__ __forceinline__ bool set_room() {
    if (__all_sync(~0u, room[0] < kFresh && room[1] < kFresh)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = fminf(4.0f * row_sum(sum[r]), 256.0f);
      room[r] = room[r] == kFresh ? most : room[r];
    }
    return __any_sync(~0u, room[0] == kUnseen || room[1] == kUnseen);
  }

  // Scores become weights; what a lane's add up to. True where some row of the warp has outgrown its room.
  template <int kCount>
  __device__ __forceinline__ bool weigh(float (&r_s)[kCount], float scale_log2, float (&of_tile)[2]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      r_s[i] = ptx::exp2_approx(__fmaf_rn(r_s[i], scale_log2, -held[i / 2 % 2]));
      of_tile[i / 2 % 2] = i == 0 || i == 2 ? r_s[i] : of_tile[i / 2 % 2] + r_s[i];
    }
    return __any_sync(~0u, !(of_tile[0] <= room[0] && of_tile[1] <= room[1]));
  }

  // Lets the rows that have outgrown their room follow their maximum. `lost` are those with weights that were
  // too large for fp32: what came before them counts for nothing, and their own scores are needed once more.
  template <int kCount>
  __device__ __forceinline__ Decay catch_up(float (&r_s)[kCount], const float (&of_tile)[2],
                                            bool (&lost)[2]) {
    float peak[2];
    row_peaks(peak, r_s);
    Decay decay = {{1.0f, 1.0f}, true};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = fmaxf(of_tile[r], __shfl_xor_sync(~0u, of_tile[r], 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const bool over = !(most <= room[r]);
      lost[r] = over && !(most < kLargestWeight);
      room[r] = over ? kFresh : room[r];
      const float now = over && peak[r] > 1.0f ? __fadd_rn(held[r], ptx::log2_approx(peak[r])) : held[r];
      decay.factor[r] = lost[r] ? 0.0f : ptx::exp2_approx(__fsub_rn(held[r], now));
      held[r] = now;
      sum[r] = lost[r] ? 0.0f : (sum[r] + of_tile[r]) * decay.factor[r];
    }
    decay.apply(r_s);
    return decay;
  }

  // Weights of lost rows, of which r_s holds the scores.
  template <int kCount>
  __device__ __forceinline__ void recover(float (&r_s)[kCount], float scale_log2, const bool (&lost)[2]) {
    float peak[2];
    row_peaks(peak, r_s);
#pragma unroll
    for (int r = 0; r < 2; ++r) held[r] = lost[r] ? __fmul_rn(peak[r], scale_log2) : held[r];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!lost[i / 2 % 2]) continue;
      r_s[i] = ptx::exp2_approx(__fmaf_rn(r_s[i], scale_log2, -held[i / 2 % 2]));
      sum[i / 2 % 2] += r_s[i];
    }
  }

  __device__ __forceinline__ void keep(const float (&of_tile)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += of_tile[r];
  }

  // Adds the partial sums of the four lanes of a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = row_sum(sum[r]);
  }
};

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_LATE_SOFTMAX_H_
