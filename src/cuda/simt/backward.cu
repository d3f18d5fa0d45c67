#include <algorithm>
#include <initializer_list>

#include "cuda/call.h"
#include "cuda/simt/backward_parts.h"
#include "cuda/simt/backward_rows.cuh"

namespace tilewise::cuda {
namespace {

constexpr int64_t kMostBlocks = int64_t{1} << 30;

unsigned blocks_of(int64_t tasks) { return static_cast<unsigned>(std::min(tasks, kMostBlocks)); }
int64_t tiles_of(int64_t rows, int64_t width) { return (rows + width - 1) / width; }

// The smallest build that holds so many chunks of 64 columns, or the widest, in slices.
using Tiles = void (*)(BackwardParams, int64_t, int, int64_t, const uint32_t*);
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

int64_t chunks_if(bool wanted, int64_t dim) { return wanted ? tiles_of(dim, simt::kColumns) : 0; }

void launch_tiles(const Build& build, const BackwardParams& p, int64_t chunks, int64_t tiles, int64_t heads,
                  const uint32_t* marks, cudaStream_t stream) {
  const auto slices = static_cast<int>(tiles_of(chunks, build.chunks));
  const int64_t tasks = slices * tiles * heads * p.batch;
  if (tasks > 0)
    build.kernel<<<blocks_of(tasks), simt::kThreads, 0, stream>>>(p, tiles, slices, tasks, marks);
}

// Asking for what a kernel needs loads it.
cudaError_t load_kernels(std::initializer_list<const void*> kernels) {
  cudaFuncAttributes needs;
  for (const void* kernel : kernels) {
    if (const cudaError_t error = cudaFuncGetAttributes(&needs, kernel); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

namespace simt {

int64_t delta_bytes(const tilewise_problem& p) {
  const int64_t rows = p.packed_q ? p.total_q : p.batch * p.seqlen_q;
  return tiles_of(rows * p.heads_q * 4, 256) * 256;
}

RowStats delta_in(void* scratch, const BackwardParams& p) {
  auto* data = static_cast<float*>(scratch);
  if (p.cu_seqlens_q.data) return {data, 0, p.total_q, 1};
  return {data, p.heads_q * p.seqlen_q, p.seqlen_q, 1};
}

cudaError_t launch_delta(const BackwardParams& given, RowStats to, cudaStream_t stream) {
  const int64_t tiles = tiles_of(given.seqlen_q, kRows);
  if (tiles * given.heads_q * given.batch == 0) return cudaSuccess;
  const auto blocks = [](int64_t wanted, int64_t most) {
    return static_cast<unsigned>(std::min(wanted, most));
  };
  const dim3 grid(blocks(tiles, kMostBlocks), blocks(given.heads_q, 65535), blocks(given.batch, 65535));
  backward_delta<<<grid, kThreads, 0, stream>>>(given, to);
  return cudaGetLastError();
}

cudaError_t launch_sinks(const BackwardParams& p, cudaStream_t stream) {
  backward_sinks<<<blocks_of(p.heads_q), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch_gradients(const BackwardParams& p, const uint32_t* key_marks, const uint32_t* query_marks,
                             cudaStream_t stream) {
  const int64_t q_tiles = tiles_of(p.seqlen_q, kRows), kv_tiles = tiles_of(p.seqlen_kv, kKeys);
  if (const int64_t chunks = chunks_if(p.dk.data, p.head_dim) + chunks_if(p.dv.data, p.head_dim_v);
      chunks > 0)
    launch_tiles(keys_build(chunks), p, chunks, kv_tiles, p.heads_kv, key_marks, stream);
  if (const int64_t chunks = chunks_if(p.dq.data, p.head_dim); chunks > 0)
    launch_tiles(queries_build(chunks), p, chunks, q_tiles, p.heads_q, query_marks, stream);
  return cudaGetLastError();
}

cudaError_t launch_bias(const BackwardParams& p, cudaStream_t stream) {
  const int64_t i_tiles = tiles_of(p.bias_shape[2], kRows), j_tiles = tiles_of(p.bias_shape[3], kKeys);
  const int64_t tasks = p.bias_shape[0] * p.bias_shape[1] * i_tiles * j_tiles;
  if (tasks > 0) backward_bias<<<blocks_of(tasks), kThreads, 0, stream>>>(p, i_tiles, j_tiles, tasks);
  return cudaGetLastError();
}

cudaError_t prepare_parts() {
  return load_kernels(
      {reinterpret_cast<const void*>(backward_delta), reinterpret_cast<const void*>(backward_sinks)});
}

cudaError_t prepare_gradients(const tilewise_problem& p) {
  const int64_t keys =
      chunks_if(p.wants & TILEWISE_WANT_DK, p.head_dim) + chunks_if(p.wants & TILEWISE_WANT_DV, p.head_dim_v);
  const int64_t queries = chunks_if(p.wants & TILEWISE_WANT_DQ, p.head_dim);
  const cudaError_t error = load_kernels({reinterpret_cast<const void*>(keys_build(keys).kernel),
                                          reinterpret_cast<const void*>(queries_build(queries).kernel),
                                          reinterpret_cast<const void*>(backward_bias)});
  return error == cudaSuccess ? prepare_parts() : error;
}

}  // namespace simt

cudaError_t backward_simt_any_64x64(const BackwardParams& given, const Call& call) {
  BackwardParams p = given;
  p.delta = simt::delta_in(call.scratch, p);
  cudaError_t error = simt::launch_delta(given, p.delta, call.stream);
  if (error != cudaSuccess) return error;
  error = simt::launch_gradients(p, nullptr, nullptr, call.stream);
  if (error == cudaSuccess && p.dbias.data) error = simt::launch_bias(p, call.stream);
  if (error == cudaSuccess && p.dsinks) error = simt::launch_sinks(p, call.stream);
  return error;
}

const char* backward_simt_any_64x64_refuses(const BackwardParams&) { return nullptr; }

const char* backward_simt_any_64x64_cannot(const tilewise_problem&) { return nullptr; }

int64_t backward_simt_any_64x64_scratch(const tilewise_problem& p) { return simt::delta_bytes(p); }

cudaError_t backward_simt_any_64x64_prepare(const tilewise_problem& p) { return simt::prepare_gradients(p); }

}  // namespace tilewise::cuda
