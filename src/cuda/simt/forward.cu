#include <algorithm>

#include "cuda/call.h"
#include "cuda/simt/forward.cuh"

namespace tilewise::cuda {
namespace {

constexpr int64_t kMostBlocks = int64_t{1} << 30;

// The smallest build that holds head_dim_v columns.
using Forward = void (*)(ForwardParams, int64_t, int64_t);
Forward build_for(int64_t head_dim_v) {
  if (head_dim_v <= 64) return simt::forward<1>;
  if (head_dim_v <= 128) return simt::forward<2>;
  if (head_dim_v <= 256) return simt::forward<4>;
  return simt::forward<9>;
}

}  // namespace

cudaError_t forward_simt_any_64x64(const ForwardParams& p, const Call& call) {
  const int64_t tiles = (p.seqlen_q + simt::kRows - 1) / simt::kRows;
  const int64_t tasks = tiles * p.heads_q * p.batch;
  if (tasks == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min(tasks, kMostBlocks));
  build_for(p.head_dim_v)<<<blocks, simt::kThreads, 0, call.stream>>>(p, tiles, tasks);
  return cudaGetLastError();
}

const char* forward_simt_any_64x64_refuses(const ForwardParams&) { return nullptr; }

cudaError_t forward_simt_any_64x64_prepare(const tilewise_problem& problem) {
  cudaFuncAttributes attributes;  // asking loads the kernel
  return cudaFuncGetAttributes(&attributes, build_for(problem.head_dim_v));
}

}  // namespace tilewise::cuda
