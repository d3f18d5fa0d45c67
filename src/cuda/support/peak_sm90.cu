// Two warpgroups a multiprocessor multiply the same 64 x 64 and 64 x 128 tiles of shared memory over and
// over: the matrix unit is never without work, and both wait for each other's turn only.
#include <cuda_bf16.h>

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/support/peak_sm90.h"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::cuda {
namespace {

constexpr int kGroups = 2, kThreads = 128 * kGroups, kSteps = 4;  // k16 steps of a 64-wide panel

__global__ void __launch_bounds__(kThreads, 1) burst(int rounds, float* sink) {
  __shared__ alignas(1024) __nv_bfloat16 a[64 * 64], b[128 * 64];
  for (int i = threadIdx.x; i < (64 + 128) * 64; i += kThreads) {
    uint32_t x = (blockIdx.x * 16384 + i) * 0x9e3779b1u;
    x ^= x >> 15;
    x *= 0x735a2d97u;
    const __nv_bfloat16 value =
        __float2bfloat16(static_cast<float>(static_cast<int>(x >> 16) - 32768) / 32768.0f);
    if (i < 64 * 64) {
      a[i] = value;
    } else {
      b[i - 64 * 64] = value;
    }
  }
  __syncthreads();
  using A = tile::SharedTile<64, 64>;
  using B = tile::SharedTile<128, 64>;
  const uint32_t at_a = A::k_major(a), at_b = B::k_major(b);
  float d[64] = {};
  for (int round = 0; round < rounds; ++round) {
    ptx::fence_async_shared();
    ptx::wgmma_fence();
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n)
      ptx::Wgmma<128, __nv_bfloat16>::ss(d, tile::descriptor(at_a + A::k_major_step(n % kSteps)),
                                         tile::descriptor(at_b + B::k_major_step(n % kSteps)), 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum += d[i];
  if (sum == 1.2345f) *sink = sum;
}

}  // namespace

double matrix_burst_flops_sm90(int multiprocessors, int rounds) {
  return 2.0 * 64 * 128 * 16 * 2 * kSteps * kGroups * multiprocessors * static_cast<double>(rounds);
}

cudaError_t launch_matrix_burst_sm90(int multiprocessors, int rounds, float* sink, cudaStream_t stream) {
  burst<<<multiprocessors, kThreads, 0, stream>>>(rounds, sink);
  return cudaGetLastError();
}

}  // namespace tilewise::cuda
