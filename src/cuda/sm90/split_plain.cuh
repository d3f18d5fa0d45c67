// The split forward of sm80/split.cuh for calls that only read and multiply: one tile of rows of 128 columns,
// no softcap, no slopes, keys contiguous or in pages of whole groups.
#ifndef TILEWISE_CUDA_SM90_SPLIT_PLAIN_H_
#define TILEWISE_CUDA_SM90_SPLIT_PLAIN_H_

#include "cuda/ptx/grid.cuh"
#include "cuda/sm90/split_plain_end.cuh"

namespace tilewise::sm90 {

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kStages == 1 && C::kUniform ? 2 : 1)
    split_plain(const __grid_constant__ PlainArgs args) {
  ptx::grid_release();
  if constexpr (C::kCluster) ptx::cluster_begin();
  extern __shared__ __align__(1024) unsigned char s_memory[];
  PlainShared<C>& shared = *reinterpret_cast<PlainShared<C>*>(s_memory);
  if constexpr (!C::kUniform) ptx::grid_wait();
  const PlainPlace place = find_place<C>(args, shared);
  if (!C::kCluster && place.left <= 0) return;
  if constexpr (C::kUniform) ptx::grid_wait();
  PlainLoader<C> loader(args, shared, place);
  PlainWalk<C, false> walk(place);
  PlainProducts<C> products;
  products.clear();
  const int warp = threadIdx.x / 32;
  const uint32_t stages = ptx::shared_address(shared.stage[warp][0]);
  uint32_t stage = 0;
  int left = 0, key0 = 0, last = 0;  // of the piece in hand: steps, the warp's next key, where its keys end
  // One loop for filling the stages and for walking on: the code of a copy stands once.
#pragma unroll 1
  for (int n = 0;; ++n) {
    const uint32_t at = stages + stage * C::kStageBytes;
    if (n >= C::kStages) {
      if (left == 0) {
        walk.next(args, shared);
        if (walk.count == 0) break;  // in a cluster, of which keys are left for few blocks, at once
        const PlainSpan& span = walk.span(args, shared);
        left = (walk.count + C::kWarps - 1) / C::kWarps;
        key0 = (span.first + walk.at + warp) * C::kKeys;
        last = min(span.see_last, (span.first + walk.at + walk.count) * C::kKeys);
        products.begin(args, shared, span, walk.batch(shared));
      }
      ptx::cp_async_wait<C::kStages - 1>();
      __syncwarp();
      if (key0 < last) products.step(args, shared, at, key0);
      __syncwarp();  // all lanes have read the stage
      key0 += C::kWarps * C::kKeys;
      --left;
    }
    loader.issue(at);
    stage = stage + 1 == C::kStages ? 0 : stage + 1;
    if (n >= C::kStages && left == 0) {
      if (C::kCluster) break;  // such a block has one unit
      finish_plain(args, shared, walk, products);
      products.clear();  // here: its registers are free while the unit ends
    }
  }
  if constexpr (C::kCluster) finish_plain(args, shared, walk, products);
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_PLAIN_H_
