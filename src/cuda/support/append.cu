// New rows of k and v into a cache, k turned by its position on the way where asked: a block for each new
// row. Lengths, starts and pages are the device's: rows that would end outside the cache are left out, as the
// host refuses them before where it can look.
#include <algorithm>

#include "cuda/support/append.h"
#include "cuda/support/element.cuh"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostBlocks = int64_t{1} << 30;

__device__ __forceinline__ void append_row(const AppendParams& a, int64_t b, int64_t i, int64_t position) {
  const KeyRun to = key_run(a.cache, Sequence(), b, position, 1);
  const int64_t half = a.rotary_dim / 2, plain = a.dim - a.rotary_dim;
  const int64_t angle = clamp_index(position, 0, a.positions - 1);
  for (int64_t n = threadIdx.x; n < a.heads * half; n += kThreads) {
    const int64_t h = n / half, turn = n - h * half;
    const int64_t from = a.k_new.at(b, i, h), at = a.cache.k.at(to.block, to.row, h);
    const RotaryPair pair = rotary_pair(a, turn);
    const float c = load(a.cos.data, a.cos.dtype, angle * a.cos.row_stride + turn);
    const float s = load(a.sin.data, a.sin.dtype, angle * a.sin.row_stride + turn);
    const float x = load(a.k_new.data, a.k_new.dtype, from + pair.x);
    const float y = load(a.k_new.data, a.k_new.dtype, from + pair.y);
    store(a.cache.k.data, a.cache.k.dtype, at + pair.x, __fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s)));
    store(a.cache.k.data, a.cache.k.dtype, at + pair.y, __fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c)));
  }
  for (int64_t n = threadIdx.x; n < a.heads * plain; n += kThreads) {
    const int64_t h = n / plain, d = a.rotary_dim + n - h * plain;
    store(a.cache.k.data, a.cache.k.dtype, a.cache.k.at(to.block, to.row, h) + d,
          load(a.k_new.data, a.k_new.dtype, a.k_new.at(b, i, h) + d));
  }
  for (int64_t n = threadIdx.x; n < a.heads * a.dim_v; n += kThreads) {
    const int64_t h = n / a.dim_v, d = n - h * a.dim_v;
    store(a.cache.v.data, a.cache.v.dtype, a.cache.v.at(to.block, to.row, h) + d,
          load(a.v_new.data, a.v_new.dtype, a.v_new.at(b, i, h) + d));
  }
}

__global__ void __launch_bounds__(kThreads) append_rows(const __grid_constant__ AppendParams a) {
  for (int64_t n = blockIdx.x; n < a.batch * a.rows; n += gridDim.x) {
    const int64_t b = n / a.rows, i = n - b * a.rows;
    const int64_t position = read_index(a.starts, b) + i;
    if (i < a.count(b) && position >= 0 && position < a.capacity()) append_row(a, b, i, position);
  }
}

}  // namespace

cudaError_t launch_append(const AppendParams& a, cudaStream_t stream) {
  const int64_t rows = a.batch * a.rows;
  if (rows == 0) return cudaSuccess;
  append_rows<<<static_cast<unsigned>(std::min(rows, kMostBlocks)), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace tilewise::cuda
