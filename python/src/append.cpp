// Appending to a cache: tilewise_append out of a dictionary of Python arrays.
#include <iterator>
#include <optional>

#include "context.h"
#include "module.h"

namespace tilewise_python {
namespace {

struct Field {
  const char* name;
  tilewise_tensor tilewise_append::*tensor;
  bool rows;  // of heads: the layout concerns it
};

constexpr Field kFields[] = {{"k_new", &tilewise_append::k_new, true},
                             {"v_new", &tilewise_append::v_new, true},
                             {"starts", &tilewise_append::starts, false},
                             {"lengths", &tilewise_append::lengths, false},
                             {"rotary_cos", &tilewise_append::rotary_cos, false},
                             {"rotary_sin", &tilewise_append::rotary_sin, false},
                             {"k", &tilewise_append::k, true},
                             {"v", &tilewise_append::v, true},
                             {"page_table", &tilewise_append::page_table, false},
                             {"cache_batch_idx", &tilewise_append::cache_batch_idx, false},
                             {"k_scales", &tilewise_append::k_scales, false},
                             {"v_scales", &tilewise_append::v_scales, false}};

void cache_append(const nb::dict& arrays, bool rotary_interleaved, int64_t scale_rows, bool write_scales,
                  const Setting& setting) {
  tilewise_append append;
  tilewise_append_init(&append);
  append.rotary_interleaved = rotary_interleaved;
  append.scale_rows = scale_rows;
  append.write_scales = write_scales;
  std::optional<Array> held[std::size(kFields)];
  for (const Field& field : kFields) {
    if (!arrays.contains(field.name)) continue;
    const tilewise_tensor& read =
        held[&field - kFields].emplace(field.name, arrays[field.name], setting.stream_of_arrays()).tensor();
    append.*field.tensor = field.rows ? as_bshd(read, setting) : read;
  }
  launch(setting, [&](tilewise_context* context, tilewise_error* error) {
    return tilewise_cache_append(context, &append, setting.stream_pointer(), error);
  });
}

}  // namespace

void bind_append(nb::module_& m) {
  m.def(
      "cache_append",
      [](const nb::dict& arrays, bool rotary_interleaved, int64_t scale_rows, bool write_scales, bool bhsd,
         bool cuda, uintptr_t stream, int32_t threads) {
        cache_append(arrays, rotary_interleaved, scale_rows, write_scales, {bhsd, cuda, stream, threads});
      },
      "New rows of k and v into a cache, in place; the arrays are named by tilewise_append.");
}

}  // namespace tilewise_python
