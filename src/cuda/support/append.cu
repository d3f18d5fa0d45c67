// New rows of k and v into a cache, k turned by its position and both quantised on the way where asked: a
// block for each new row. Lengths, starts, pages and slots are the device's: rows for which the cache has no
// place are left out, as the host refuses them before where it can look.
#include <algorithm>

#include "cuda/support/append.h"
#include "cuda/support/element.cuh"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostBlocks = int64_t{1} << 30;

// Element d of a new key, turned by the angle of its position.
__device__ __forceinline__ float key_element(const AppendParams& a, int64_t at, int64_t d, int64_t angle) {
  if (d >= a.rotary_dim) return load(a.k_new.data, a.k_new.dtype, at + d);
  const RotaryPair pair = rotary_pair(a, d);
  const float c = load(a.cos.data, a.cos.dtype, angle * a.cos.row_stride + pair.turn);
  const float s = load(a.sin.data, a.sin.dtype, angle * a.sin.row_stride + pair.turn);
  const float x = load(a.k_new.data, a.k_new.dtype, at + pair.x);
  const float y = load(a.k_new.data, a.k_new.dtype, at + pair.y);
  return d == pair.x ? __fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s))
                     : __fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c));
}

// The scale that a row's largest magnitude asks for; the same in every lane of a warp.
template <typename Element>
__device__ __forceinline__ float own_scale(DType dtype, int64_t dim, const Element& element) {
  float largest = 0.0f;
  bool bad = false;
  for (int64_t d = threadIdx.x % 32; d < dim; d += 32) {
    const float value = element(d);
    largest = fmaxf(largest, fabsf(value));
    bad |= value != value;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  return __any_sync(0xffffffffu, bad) ? __int_as_float(0x7fc00000)
                                      : __fdiv_rn(largest, largest_stored(dtype));
}

// One row of k or v, element(head, d), into the cache.
template <bool kQuantized, typename Element>
__device__ __forceinline__ void store_row(const AppendParams& a, const RowTensor& t,
                                          const CacheScales& scales, float* scales_out, const KeyRun& to,
                                          int64_t dim, const Element& element) {
  if constexpr (!kQuantized) {
    for (int64_t n = threadIdx.x; n < a.heads * dim; n += kThreads) {
      const int64_t h = n / dim, d = n - h * dim;
      store(t.data, t.dtype, t.at(to.block, to.row, h) + d, element(h, d));
    }
    return;
  }
  const int64_t group = scale_group(a.cache, Sequence(), to);
  for (int64_t h = threadIdx.x / 32; h < a.heads; h += kThreads / 32) {  // a warp each
    float scale = scales.at(to.block, group, h);
    if (scales_out) {
      scale = own_scale(t.dtype, dim, [&](int64_t d) { return element(h, d); });
      if (threadIdx.x % 32 == 0)
        scales_out[to.block * scales.block_stride + group * scales.group_stride + h * scales.head_stride] =
            scale;
    }
    const float factor = inverse_of(scale);
    const int64_t at = t.at(to.block, to.row, h);
    for (int64_t d = threadIdx.x % 32; d < dim; d += 32)
      store_quantized(t.data, t.dtype, at + d, __fmul_rn(element(h, d), factor));
  }
}

// Not inlined: around the divisions' slow paths ptxas would spill the loop's values on sm_80.
template <bool kQuantized>
__device__ __noinline__ void append_row(const AppendParams& a, int64_t b, int64_t i, int64_t position) {
  if (!a.has_place(b, position)) return;
  const KeyRun to = key_run(a.cache, Sequence(), b, position, 1);
  const int64_t angle = clamp_index(position, 0, a.positions - 1);
  store_row<kQuantized>(a, a.cache.k, a.cache.k_scales, a.k_scales_out, to, a.dim,
                        [&](int64_t h, int64_t d) { return key_element(a, a.k_new.at(b, i, h), d, angle); });
  store_row<kQuantized>(
      a, a.cache.v, a.cache.v_scales, a.v_scales_out, to, a.dim_v,
      [&](int64_t h, int64_t d) { return load(a.v_new.data, a.v_new.dtype, a.v_new.at(b, i, h) + d); });
}

template <bool kQuantized>
__global__ void __launch_bounds__(kThreads) append_rows(const __grid_constant__ AppendParams a) {
  for (int64_t n = blockIdx.x; n < a.batch * a.rows; n += gridDim.x) {
    const int64_t b = n / a.rows, i = n - b * a.rows;
    const int64_t position = read_index(a.starts, b) + i;
    if (i < a.count(b)) append_row<kQuantized>(a, b, i, position);
  }
}

}  // namespace

cudaError_t launch_append(const AppendParams& a, cudaStream_t stream) {
  const int64_t rows = a.batch * a.rows;
  if (rows == 0) return cudaSuccess;
  const auto kernel = is_quantized(a.cache.k.dtype) ? append_rows<true> : append_rows<false>;
  kernel<<<static_cast<unsigned>(std::min(rows, kMostBlocks)), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace tilewise::cuda
