// Bursts of matrix products by mma.sync (through nvcc's own wmma), and of reads.
#include <cuda_fp16.h>
#include <mma.h>

#include "cuda/support/peak.h"
#include "cuda/support/peak_sm90.h"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 256, kBlocks = 2, kTiles = 4;
constexpr double kFlopsOfWarp = kTiles * 2.0 * 16 * 16 * 16;  // a round

__device__ float noise(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  x ^= x >> 15;
  return static_cast<float>(static_cast<int>(x >> 16) - 32768) / 32768.0f;
}

// fp16 operands: every capability from 7.5 has them, at bf16's rate.
__global__ void __launch_bounds__(kThreads, kBlocks) matrix_burst(int rounds, float* sink) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, __half, row_major> a;
  fragment<matrix_b, 16, 16, 16, __half, col_major> b[kTiles];
  fragment<accumulator, 16, 16, 16, float> d[kTiles];
  const uint32_t seed = (blockIdx.x * blockDim.x + threadIdx.x) * 64;
  for (int i = 0; i < a.num_elements; ++i) a.x[i] = __float2half(noise(seed + i));
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    for (int i = 0; i < b[t].num_elements; ++i) b[t].x[i] = __float2half(noise(seed + 16 * t + i + 7));
    fill_fragment(d[t], 0.0f);
  }
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) mma_sync(d[t], a, b[t], d[t]);
  }
  float sum = 0.0f;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) sum += d[t].x[0];
  if (sum == 1.2345f) *sink = sum;  // keeps the products alive
}

__global__ void __launch_bounds__(512) read_burst(const uint4* data, int64_t count, float* sink) {
  constexpr int kAhead = 8;
  uint32_t sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (kAhead - 1) * step < count; i += kAhead * step) {
    uint4 x[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) x[n] = __ldcs(data + i + n * step);
#pragma unroll
    for (int n = 0; n < kAhead; ++n) sum ^= x[n].x ^ x[n].y ^ x[n].z ^ x[n].w;
  }
  for (; i < count; i += step) sum ^= data[i].x;
  if (sum == 0x12345678u) *sink = 1.0f;
}

}  // namespace

double matrix_burst_flops(int capability, int multiprocessors, int rounds) {
  if (capability == 90) return matrix_burst_flops_sm90(multiprocessors, rounds);
  return kFlopsOfWarp * (kThreads / 32) * kBlocks * multiprocessors * rounds;
}

cudaError_t launch_matrix_burst(int capability, int multiprocessors, int rounds, float* sink,
                                cudaStream_t stream) {
  if (capability == 90) return launch_matrix_burst_sm90(multiprocessors, rounds, sink, stream);
  matrix_burst<<<kBlocks * multiprocessors, kThreads, 0, stream>>>(rounds, sink);
  return cudaGetLastError();
}

cudaError_t launch_read_burst(int multiprocessors, const void* data, int64_t bytes, float* sink,
                              cudaStream_t stream) {
  read_burst<<<multiprocessors, 512, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
  return cudaGetLastError();
}

}  // namespace tilewise::cuda
