// (o, lse) and a part become attention over both key sets: a warp for each row of each head. A part without
// keys changes no bit; a weight of 0 takes nothing, so that 0 * NaN does not spread from one.
#include <algorithm>

#include "core/softmax.h"
#include "cuda/support/element.cuh"
#include "cuda/support/merge.h"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 128, kWarp = 32;
constexpr int64_t kMostBlocks = int64_t{1} << 30;

__global__ void __launch_bounds__(kThreads) merge_rows(const __grid_constant__ MergeParts p, int64_t rows) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
  const int lane = threadIdx.x % kWarp;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp; n < rows;
       n += step) {
    const int64_t h = n % p.heads, i = n / p.heads % p.rows, b = n / p.heads / p.rows;
    float* lse = p.lse.data + b * p.lse.batch_stride + h * p.lse.head_stride + i * p.lse.row_stride;
    const float before = *lse;
    const float part =
        p.lse_part.data[b * p.lse_part.batch_stride + h * p.lse_part.head_stride + i * p.lse_part.row_stride];
    if (part == kNegativeInfinity) continue;
    const bool replace = before == kNegativeInfinity;
    const MergeWeights w = merge_weights(before, part);
    __syncwarp();  // every lane has read lse
    if (lane == 0) *lse = w.lse;
    const int64_t o_at = b * p.o.batch_stride + i * p.o.row_stride + h * p.o.head_stride;
    const int64_t part_at = b * p.o_part.batch_stride + i * p.o_part.row_stride + h * p.o_part.head_stride;
    for (int64_t d = lane; d < p.dim; d += kWarp) {
      const float value = load(p.o_part.data, p.o_part.dtype, part_at + d);
      const float merged = replace ? value : fmaf(w.a, load(p.o.data, p.o.dtype, o_at + d), w.b * value);
      store(p.o.data, p.o.dtype, o_at + d, merged);
    }
  }
}

}  // namespace

cudaError_t launch_merge(const MergeParts& p, cudaStream_t stream) {
  const int64_t rows = p.batch * p.rows * p.heads;
  if (rows == 0) return cudaSuccess;
  constexpr int64_t kRowsOfBlock = kThreads / kWarp;
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, (rows + kRowsOfBlock - 1) / kRowsOfBlock));
  merge_rows<<<blocks, kThreads, 0, stream>>>(p, rows);
  return cudaGetLastError();
}

}  // namespace tilewise::cuda
