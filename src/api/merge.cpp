// merge: (o, lse) and a part become attention over the union of their keys.
#include <algorithm>

#include "api/border.h"
#include "api/check.h"
#include "api/context.h"
#include "core/half.h"
#include "core/merge.h"
#include "core/softmax.h"
#include "cuda/runtime.h"

namespace tilewise {
namespace {

// Storage types and their conversions; F16 and BF16 are both 16 bits in memory.
struct F32 {
  using Type = float;
  static float load(float x) { return x; }
  static float store(float x) { return x; }
};
struct F16 {
  using Type = uint16_t;
  static float load(uint16_t x) { return float_of_f16(x); }
  static uint16_t store(float x) { return f16_of_float(x); }
};
struct Bf16 {
  using Type = uint16_t;
  static float load(uint16_t x) { return float_of_bf16(x); }
  static uint16_t store(float x) { return bf16_of_float(x); }
};

template <typename Use>
void with_type(DType dtype, Use&& use) {
  if (dtype == DType::f32) return use(F32());
  if (dtype == DType::f16) return use(F16());
  use(Bf16());
}

// A weight of 0 takes nothing: 0 * NaN must not spread from a part without keys.
template <typename O, typename Part>
void merge_row(const MergeParts& p, int64_t b, int64_t i, int64_t h) {
  float& lse = p.lse.data[b * p.lse.batch_stride + h * p.lse.head_stride + i * p.lse.row_stride];
  const float lse_part =
      p.lse_part.data[b * p.lse_part.batch_stride + h * p.lse_part.head_stride + i * p.lse_part.row_stride];
  if (lse_part == kNegativeInfinity) return;
  auto* o = static_cast<typename O::Type*>(p.o.data) + b * p.o.batch_stride + i * p.o.row_stride +
            h * p.o.head_stride;
  const auto* part = static_cast<const typename Part::Type*>(p.o_part.data) + b * p.o_part.batch_stride +
                     i * p.o_part.row_stride + h * p.o_part.head_stride;
  const bool replace = lse == kNegativeInfinity;
  const MergeWeights w = merge_weights(lse, lse_part);
  lse = w.lse;
  for (int64_t d = 0; d < p.dim; ++d) {
    const float value = Part::load(part[d]);
    o[d] = O::store(replace ? value : w.a * O::load(o[d]) + w.b * value);
  }
}

Status bind(const tilewise_tensor& o, const tilewise_tensor& lse, const tilewise_tensor& o_part,
            const tilewise_tensor& lse_part, MergeParts* parts) {
  TensorChecks checks(o.device_kind, o.device_index);  // all where o is
  if (!checks.require("o", o) || !checks.require("lse", lse) || !checks.require("o_part", o_part) ||
      !checks.require("lse_part", lse_part))
    return checks.take_status();
  const bool packed = o.rank == 3;
  const char* labels = packed ? "[total, heads_q, head_dim_v]" : "[batch, seqlen_q, heads_q, head_dim_v]";
  if (!packed && !checks.rank("o", o, 4, labels)) return checks.take_status();
  const int row = packed ? 0 : 1;
  parts->batch = packed ? 1 : o.shape[0];
  parts->rows = o.shape[row];
  parts->heads = o.shape[row + 1];
  parts->dim = o.shape[row + 2];
  Shape shape{o.rank, {}, labels};
  std::copy(o.shape, o.shape + o.rank, shape.size);
  const Shape stats =
      packed ? Shape{2, {parts->heads, parts->rows, 0, 0}, "[heads_q, total]"}
             : Shape{3, {parts->batch, parts->heads, parts->rows, 0}, "[batch, heads_q, seqlen_q]"};
  const Rules written{Access::output, true, 1}, read{Access::input, true, 1};
  if (!checks.dtype("o", o, {DType::f32, DType::f16, DType::bf16}) ||
      !checks.dtype("o_part", o_part, {DType::f32, DType::f16, DType::bf16}) ||
      !checks.dtype("lse", lse, {DType::f32}) || !checks.dtype("lse_part", lse_part, {DType::f32}) ||
      !checks.layout("o", o, shape, written) || !checks.layout("o_part", o_part, shape, read) ||
      !checks.layout("lse", lse, stats, {Access::output, false, 1}) ||
      !checks.layout("lse_part", lse_part, stats, {}) || !checks.overlaps())
    return checks.take_status();
  const auto rows_of = [&](const tilewise_tensor& t) {
    return RowTensor{t.data, static_cast<DType>(t.dtype), packed ? 0 : stride_of(t, 0), stride_of(t, row),
                     stride_of(t, row + 1)};
  };
  const auto stats_of = [&](const tilewise_tensor& t) {
    return RowStats{static_cast<float*>(t.data), packed ? 0 : stride_of(t, 0), stride_of(t, row),
                    stride_of(t, row + 1)};
  };
  parts->o = rows_of(o);
  parts->o_part = rows_of(o_part);
  parts->lse = stats_of(lse);
  parts->lse_part = stats_of(lse_part);
  return {};
}

void merge_all(const MergeParts& p, Executor& executor) {
  constexpr int64_t kChunk = 64;  // rows a task
  const int64_t chunks = (p.rows + kChunk - 1) / kChunk;
  with_type(p.o.dtype, [&](auto o) {
    with_type(p.o_part.dtype, [&](auto part) {
      auto body = [&](int64_t index, int) {
        const int64_t b = index / chunks, first = index % chunks * kChunk;
        for (int64_t i = first; i < std::min(first + kChunk, p.rows); ++i) {
          for (int64_t h = 0; h < p.heads; ++h) merge_row<decltype(o), decltype(part)>(p, b, i, h);
        }
      };
      executor.run(p.batch * chunks, executor.workers(), body);
    });
  });
}

}  // namespace
}  // namespace tilewise

tilewise_code tilewise_merge(tilewise_context* context, const tilewise_tensor* o, const tilewise_tensor* lse,
                             const tilewise_tensor* o_part, const tilewise_tensor* lse_part, void* stream,
                             tilewise_error* error) {
  using namespace tilewise;
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!o) return null_argument("o");
    if (!lse) return null_argument("lse");
    if (!o_part) return null_argument("o_part");
    if (!lse_part) return null_argument("lse_part");
    if (o->device_kind != TILEWISE_CPU && o->device_kind != TILEWISE_CUDA)
      return {Code::invalid, cat("o has device kind ", o->device_kind, "; accepted: 0 (CPU), 1 (CUDA)")};
    MergeParts parts;
    if (Status s = bind(*o, *lse, *o_part, *lse_part, &parts); !s.ok()) return s;
    if (o->device_kind == TILEWISE_CUDA) return cuda::merge(o->device_index, stream, parts);
    merge_all(parts, *context->executor);
    return {};
  });
}
