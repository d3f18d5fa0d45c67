// Host side of the fp32 backward rows: parts, D, the two kernels, then in plain fp32 what they marked; dbias
// and dsinks too are plain fp32's.
#ifndef TILEWISE_CUDA_SM80_BACKWARD_F32_LAUNCH_H_
#define TILEWISE_CUDA_SM80_BACKWARD_F32_LAUNCH_H_

#include "cuda/sm80/backward_f32_keys.cuh"
#include "cuda/sm80/backward_f32_queries.cuh"
#include "cuda/sm80/backward_launch.cuh"
#include "cuda/sm80/f32_parts_launch.cuh"

namespace tilewise::sm80 {

// D, marks of keys and of queries, parts.
inline int64_t f32_backward_scratch(const tilewise_problem& p, int dim) {
  const int64_t rows_q = p.packed_q ? p.total_q : p.batch * p.seqlen_q;
  const int64_t rows_kv = p.packed_kv ? p.total_kv : p.batch * p.seqlen_kv;
  return cuda::simt::delta_bytes(p) + cuda::f32_mark_bytes(p.batch * p.heads_kv, p.seqlen_kv) +
         cuda::f32_mark_bytes(p.batch * p.heads_q, p.seqlen_q) +
         cuda::f32_backward_part_bytes(dim, rows_q * p.heads_q, rows_kv * p.heads_kv);
}

template <typename Keys, typename Queries>
struct F32BackwardRow {
  static constexpr int kDim = Keys::kDim;
  static_assert(sizeof(F32KeyShared<Keys>) <= kMostShared || !Keys::kGeneral);
  static_assert(sizeof(F32QueryShared<Queries>) <= kMostShared || !Queries::kGeneral);

  static cudaError_t prepare(const tilewise_problem& p) {
    cudaError_t error = cuda::allow_shared(make_parts<kDim, 4, Low::plain>, 0);
    if (error == cudaSuccess) error = cuda::allow_shared(backward_f32_keys<Keys>, sizeof(F32KeyShared<Keys>));
    if (error == cudaSuccess)
      error = cuda::allow_shared(backward_f32_queries<Queries>, sizeof(F32QueryShared<Queries>));
    return error == cudaSuccess ? cuda::simt::prepare_gradients(p) : error;
  }

  static cudaError_t launch(const BackwardParams& p, const cuda::Call& call) {
    F32BackwardArgs args;
    static_cast<BackwardArgs&>(args) = make_backward_args(p, cuda::simt::delta_in(call.scratch, p));
    args.shaped = 1;  // natural units: the difference to lse is rounded once
    const bool packed = p.cu_seqlens_q.data != nullptr;
    const int64_t rows = packed ? p.total_q : p.batch * p.seqlen_q;
    auto* scratch = static_cast<uint8_t*>(call.scratch) + (rows * p.heads_q * 4 + 255) / 256 * 256;
    auto* key_marks = reinterpret_cast<uint32_t*>(scratch);
    scratch += cuda::f32_mark_bytes(p.batch * p.heads_kv, p.seqlen_kv);
    auto* query_marks = reinterpret_cast<uint32_t*>(scratch);
    scratch += cuda::f32_mark_bytes(p.batch * p.heads_q, p.seqlen_q);

    PartsArgs<4> parts;
    cudaError_t error = launch_parts<kDim, Low::plain>(p, &p.dout, scratch, parts, call.stream);
    if (error == cudaSuccess) error = cuda::simt::launch_delta(p, args.params.delta, call.stream);
    if (error != cudaSuccess) return error;
    args.q = parts.of[0].parts;
    args.k = parts.of[1].parts;
    args.v = parts.of[2].parts;
    args.dout_parts = parts.of[3].parts;
    args.redo = key_marks;
    error = launch_keys(args, call.stream);
    args.redo = query_marks;
    if (error == cudaSuccess) error = launch_queries(args, call.stream);
    if (error == cudaSuccess)
      error = cuda::simt::launch_gradients(args.params, key_marks, query_marks, call.stream);
    if (error == cudaSuccess && p.dbias.data) error = cuda::simt::launch_bias(args.params, call.stream);
    if (error == cudaSuccess && p.dsinks) error = cuda::simt::launch_sinks(args.params, call.stream);
    return error;
  }

 private:
  static cudaError_t launch_keys(F32BackwardArgs args, cudaStream_t stream) {
    const BackwardParams& p = args.params;
    args.order = order_of_keys(p, Keys::kTileN);
    if (args.order.total == 0 || (!p.dk.data && !p.dv.data)) return cudaSuccess;
    args.gradient = !p.dk.data ? Gradient::dv : !p.dv.data ? Gradient::dk : Gradient::both;
    return cuda::launch_shared(backward_f32_keys<Keys>, args.order.total, Keys::kThreads,
                               sizeof(F32KeyShared<Keys>), stream, args);
  }
  static cudaError_t launch_queries(F32BackwardArgs args, cudaStream_t stream) {
    args.order = tile::order_of(args.params, Queries::kTileM);
    if (args.order.total == 0 || !args.params.dq.data) return cudaSuccess;
    return cuda::launch_shared(backward_f32_queries<Queries>, args.order.total, Queries::kThreads,
                               sizeof(F32QueryShared<Queries>), stream, args);
  }
};

// What rows of score class simple have no code for (the planner knows the rest).
inline const char* f32_simple_cannot(const tilewise_problem& p) {
  return p.softcap > 0.0f || p.features & TILEWISE_HAS_ALIBI
             ? "has no code for a softcap or ALiBi; a row with score general has"
             : nullptr;
}

}  // namespace tilewise::sm80

// Gives a unit's kernels the name of a row (cuda/units.h).
#define TILEWISE_F32_BACKWARD(name, products, general, dim, keys_rows, keys_stages, keys_blocks,   \
                              queries_rows, queries_stages, queries_blocks)                        \
  namespace tilewise::cuda {                                                                       \
  namespace {                                                                                      \
  using Row = sm80::F32BackwardRow<                                                                \
      sm80::F32KeyConfig<products, dim, keys_rows, keys_stages, general, keys_blocks>,             \
      sm80::F32QueryConfig<products, dim, queries_rows, queries_stages, general, queries_blocks>>; \
  }                                                                                                \
  cudaError_t name(const BackwardParams& p, const Call& call) { return Row::launch(p, call); }     \
  cudaError_t name##_prepare(const tilewise_problem& problem) { return Row::prepare(problem); }    \
  const char* name##_refuses(const BackwardParams&) { return nullptr; }                            \
  const char* name##_cannot(const tilewise_problem& p) {                                           \
    return general ? nullptr : sm80::f32_simple_cannot(p);                                         \
  }                                                                                                \
  int64_t name##_scratch(const tilewise_problem& p) { return sm80::f32_backward_scratch(p, dim); } \
  }

#endif  // TILEWISE_CUDA_SM80_BACKWARD_F32_LAUNCH_H_
