// What computes: attention in both directions, merge, rows of P. Arguments are complete and named by
// tilewise_tensors; the Python side has made them so.
#include "module.h"

#include "context.h"

namespace tilewise_python {
namespace {

struct Scalars {
  int64_t q_offset;
  uint64_t dropout_seed, dropout_offset;
};

void attention(const tilewise_problem& options, const nb::dict& arrays, const Setting& setting,
               const Scalars& scalars) {
  Call call(arrays, setting);
  call.tensors().q_offset_value = scalars.q_offset;
  call.tensors().dropout_seed = scalars.dropout_seed;
  call.tensors().dropout_offset = scalars.dropout_offset;
  launch(setting, [&](tilewise_context* context, tilewise_error* error) {
    return tilewise_attention(context, &options, &call.tensors(), setting.stream_pointer(), error);
  });
}

void merge(nb::handle o, nb::handle lse, nb::handle o_part, nb::handle lse_part, const Setting& setting) {
  const Array a("o", o, setting.stream_of_arrays()), b("lse", lse, setting.stream_of_arrays()),
      c("o_part", o_part, setting.stream_of_arrays()), d("lse_part", lse_part, setting.stream_of_arrays());
  const tilewise_tensor rows = as_bshd(a.tensor(), setting), part = as_bshd(c.tensor(), setting);
  launch(setting, [&](tilewise_context* context, tilewise_error* error) {
    return tilewise_merge(context, &rows, &b.tensor(), &part, &d.tensor(), setting.stream_pointer(), error);
  });
}

void attention_weights(const tilewise_problem& options, const nb::dict& arrays, nb::handle rows,
                       nb::handle weights, const Setting& setting, int64_t q_offset) {
  Call call(arrays, setting);
  call.tensors().q_offset_value = q_offset;
  const Array r("rows", rows, setting.stream_of_arrays()), w("weights", weights, setting.stream_of_arrays());
  launch(setting, [&](tilewise_context* context, tilewise_error* error) {
    return tilewise_attention_weights(context, &options, &call.tensors(), &r.tensor(), &w.tensor(), error);
  });
}

}  // namespace

void bind_run(nb::module_& m) {
  m.def(
      "attention",
      [](const tilewise_problem& options, const nb::dict& arrays, bool bhsd, bool cuda, uintptr_t stream,
         int32_t threads, int64_t q_offset, uint64_t dropout_seed, uint64_t dropout_offset) {
        attention(options, arrays, {bhsd, cuda, stream, threads}, {q_offset, dropout_seed, dropout_offset});
      },
      "Forward or backward, as options.direction says; writes the arrays that are outputs.");
  m.def(
      "merge",
      [](nb::handle o, nb::handle lse, nb::handle o_part, nb::handle lse_part, bool bhsd, bool cuda,
         uintptr_t stream, int32_t threads) {
        merge(o, lse, o_part, lse_part, {bhsd, cuda, stream, threads});
      },
      "Folds a part into (o, lse).");
  m.def(
      "attention_weights",
      [](const tilewise_problem& options, const nb::dict& arrays, nb::handle rows, nb::handle weights,
         bool bhsd, bool cuda, uintptr_t stream, int32_t threads, int64_t q_offset) {
        attention_weights(options, arrays, rows, weights, {bhsd, cuda, stream, threads}, q_offset);
      },
      "Rows of P into weights.");
  m.def("dropout_keep", &tilewise_dropout_keep, "The dropout mask, one element at a time.");
}

}  // namespace tilewise_python
