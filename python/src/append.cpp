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

// The arrays are named by tilewise_append.
class AppendCall {
 public:
  AppendCall(const nb::dict& arrays, bool rotary_interleaved, int64_t scale_rows, bool write_scales,
             const Setting& setting) {
    tilewise_append_init(&append_);
    append_.rotary_interleaved = rotary_interleaved;
    append_.scale_rows = scale_rows;
    append_.write_scales = write_scales;
    for (const Field& field : kFields) {
      if (!arrays.contains(field.name)) continue;
      const tilewise_tensor& read = held_[&field - kFields]
                                        .emplace(field.name, arrays[field.name], setting.stream_of_arrays())
                                        .tensor();
      append_.*field.tensor = field.rows ? as_bshd(read, setting) : read;
    }
  }
  const tilewise_append& append() const { return append_; }

 private:
  tilewise_append append_;
  std::optional<Array> held_[std::size(kFields)];
};

}  // namespace

void bind_append(nb::module_& m) {
  m.def(
      "cache_append",
      [](const nb::dict& arrays, bool rotary_interleaved, int64_t scale_rows, bool write_scales, bool bhsd,
         bool cuda, uintptr_t stream, int32_t threads) {
        const Setting setting{bhsd, cuda, stream, threads};
        const AppendCall call(arrays, rotary_interleaved, scale_rows, write_scales, setting);
        launch(setting, [&](tilewise_context* context, tilewise_error* error) {
          return tilewise_cache_append(context, &call.append(), setting.stream_pointer(), error);
        });
      },
      "New rows of k and v into a cache, in place.");
  m.def(
      "append_attention",
      [](const nb::dict& rows, bool rotary_interleaved, const tilewise_problem& options,
         const nb::dict& arrays, bool bhsd, bool cuda, uintptr_t stream, int32_t threads, int64_t q_offset) {
        const Setting setting{bhsd, cuda, stream, threads};
        const AppendCall append(rows, rotary_interleaved, options.scale_rows, false, setting);
        Call call(arrays, setting);
        call.tensors().q_offset_value = q_offset;
        launch(setting, [&](tilewise_context* context, tilewise_error* error) {
          return tilewise_append_attention(context, &append.append(), &options, &call.tensors(),
                                           setting.stream_pointer(), error);
        });
      },
      "cache_append, then attention over that cache; where either is refused nothing is written.");
}

}  // namespace tilewise_python
