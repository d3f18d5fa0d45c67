#include <algorithm>

#include "cuda/simt/backward_rows.cuh"
#include "cuda/units.h"

namespace tilewise::cuda {
namespace {

constexpr int64_t kMostBlocks = int64_t{1} << 30;

unsigned blocks_of(int64_t tasks) { return static_cast<unsigned>(std::min(tasks, kMostBlocks)); }
int64_t tiles_of(int64_t rows, int64_t width) { return (rows + width - 1) / width; }

// The smallest build that holds so many chunks of 64 columns, or the widest, in slices.
using Tiles = void (*)(BackwardParams, int64_t, int, int64_t);
struct Build {
  Tiles kernel;
  int chunks;
};
Build keys_build(int64_t chunks) {
  return chunks <= 2 ? Build{simt::backward_keys<2>, 2} : Build{simt::backward_keys<4>, 4};
}
Build queries_build(int64_t chunks) {
  return chunks <= 2 ? Build{simt::backward_queries<2>, 2} : Build{simt::backward_queries<4>, 4};
}

int64_t chunks_of(bool wanted, int64_t dim) { return wanted ? tiles_of(dim, simt::kColumns) : 0; }

void launch_tiles(const Build& build, const BackwardParams& p, int64_t chunks, int64_t tiles, int64_t heads,
                  cudaStream_t stream) {
  const auto slices = static_cast<int>(tiles_of(chunks, build.chunks));
  const int64_t tasks = slices * tiles * heads * p.batch;
  if (tasks > 0) build.kernel<<<blocks_of(tasks), simt::kThreads, 0, stream>>>(p, tiles, slices, tasks);
}

}  // namespace

cudaError_t backward_simt_any_64x64(const BackwardParams& given, const Call& call) {
  BackwardParams p = given;
  p.delta = {static_cast<float*>(call.scratch), p.heads_q * p.seqlen_q, p.seqlen_q, 1};
  if (p.cu_seqlens_q.data) p.delta = {static_cast<float*>(call.scratch), 0, p.total_q, 1};
  const int64_t q_tiles = tiles_of(p.seqlen_q, simt::kRows), kv_tiles = tiles_of(p.seqlen_kv, simt::kKeys);
  if (const int64_t tasks = q_tiles * p.heads_q * p.batch; tasks > 0)
    simt::backward_delta<<<blocks_of(tasks), simt::kThreads, 0, call.stream>>>(given, p.delta, q_tiles,
                                                                               tasks);
  if (const int64_t chunks = chunks_of(p.dk.data, p.head_dim) + chunks_of(p.dv.data, p.head_dim_v);
      chunks > 0)
    launch_tiles(keys_build(chunks), p, chunks, kv_tiles, p.heads_kv, call.stream);
  if (const int64_t chunks = chunks_of(p.dq.data, p.head_dim); chunks > 0)
    launch_tiles(queries_build(chunks), p, chunks, q_tiles, p.heads_q, call.stream);
  if (p.dbias.data) {
    const int64_t i_tiles = tiles_of(p.bias_shape[2], simt::kRows),
                  j_tiles = tiles_of(p.bias_shape[3], simt::kKeys);
    if (const int64_t tasks = p.bias_shape[0] * p.bias_shape[1] * i_tiles * j_tiles; tasks > 0)
      simt::backward_bias<<<blocks_of(tasks), simt::kThreads, 0, call.stream>>>(p, i_tiles, j_tiles, tasks);
  }
  if (p.dsinks) simt::backward_sinks<<<blocks_of(p.heads_q), simt::kThreads, 0, call.stream>>>(p);
  return cudaGetLastError();
}

const char* backward_simt_any_64x64_refuses(const BackwardParams&) { return nullptr; }

const char* backward_simt_any_64x64_cannot(const tilewise_problem&) { return nullptr; }

// D of every row.
int64_t backward_simt_any_64x64_scratch(const tilewise_problem& p) {
  const int64_t rows = p.packed_q ? p.total_q : p.batch * p.seqlen_q;
  return tiles_of(rows * p.heads_q * 4, 256) * 256;
}

cudaError_t backward_simt_any_64x64_prepare(const tilewise_problem& p) {
  const int64_t keys =
      chunks_of(p.wants & TILEWISE_WANT_DK, p.head_dim) + chunks_of(p.wants & TILEWISE_WANT_DV, p.head_dim_v);
  const int64_t queries = chunks_of(p.wants & TILEWISE_WANT_DQ, p.head_dim);
  const void* kernels[] = {reinterpret_cast<const void*>(simt::backward_delta),
                           reinterpret_cast<const void*>(keys_build(keys).kernel),
                           reinterpret_cast<const void*>(queries_build(queries).kernel),
                           reinterpret_cast<const void*>(simt::backward_bias),
                           reinterpret_cast<const void*>(simt::backward_sinks)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;  // asking loads the kernel
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

}  // namespace tilewise::cuda
