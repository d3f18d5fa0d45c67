#include "call.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace tilewise_python {
namespace {

enum class Kind { plain, rows, scores, bits, state };

struct Field {
  const char* name;
  tilewise_tensor tilewise_tensors::*tensor;
  Kind kind;
};

constexpr Field kFields[] = {{"q", &tilewise_tensors::q, Kind::rows},
                             {"k", &tilewise_tensors::k, Kind::rows},
                             {"v", &tilewise_tensors::v, Kind::rows},
                             {"o", &tilewise_tensors::o, Kind::rows},
                             {"lse", &tilewise_tensors::lse, Kind::plain},
                             {"bias", &tilewise_tensors::bias, Kind::scores},
                             {"mask", &tilewise_tensors::mask, Kind::scores},
                             {"mask_bits", &tilewise_tensors::mask, Kind::bits},
                             {"q_lengths", &tilewise_tensors::q_lengths, Kind::plain},
                             {"kv_lengths", &tilewise_tensors::kv_lengths, Kind::plain},
                             {"kv_starts", &tilewise_tensors::kv_starts, Kind::plain},
                             {"q_offset", &tilewise_tensors::q_offset, Kind::plain},
                             {"page_table", &tilewise_tensors::page_table, Kind::plain},
                             {"cache_batch_idx", &tilewise_tensors::cache_batch_idx, Kind::plain},
                             {"k_scales", &tilewise_tensors::k_scales, Kind::plain},
                             {"v_scales", &tilewise_tensors::v_scales, Kind::plain},
                             {"cu_seqlens_q", &tilewise_tensors::cu_seqlens_q, Kind::plain},
                             {"cu_seqlens_kv", &tilewise_tensors::cu_seqlens_kv, Kind::plain},
                             {"segment_ids_q", &tilewise_tensors::segment_ids_q, Kind::plain},
                             {"segment_ids_kv", &tilewise_tensors::segment_ids_kv, Kind::plain},
                             {"kv_ranges", &tilewise_tensors::kv_ranges, Kind::plain},
                             {"alibi_slopes", &tilewise_tensors::alibi_slopes, Kind::plain},
                             {"sinks", &tilewise_tensors::sinks, Kind::plain},
                             {"dropout_state", &tilewise_tensors::dropout_state, Kind::state},
                             {"dout", &tilewise_tensors::dout, Kind::rows},
                             {"dlse", &tilewise_tensors::dlse, Kind::plain},
                             {"delta", &tilewise_tensors::delta, Kind::plain},
                             {"dq", &tilewise_tensors::dq, Kind::rows},
                             {"dk", &tilewise_tensors::dk, Kind::rows},
                             {"dv", &tilewise_tensors::dv, Kind::rows},
                             {"dbias", &tilewise_tensors::dbias, Kind::scores},
                             {"dsinks", &tilewise_tensors::dsinks, Kind::plain}};

// [Sq, Skv] is [1, 1, Sq, Skv]: arrays broadcast from the right.
tilewise_tensor as_four_dimensions(tilewise_tensor t) {
  const int missing = TILEWISE_MAX_RANK - t.rank;
  if (missing <= 0) return t;
  std::copy_backward(t.shape, t.shape + t.rank, t.shape + TILEWISE_MAX_RANK);
  std::copy_backward(t.stride, t.stride + t.rank, t.stride + TILEWISE_MAX_RANK);
  std::fill(t.shape, t.shape + missing, 1);
  std::fill(t.stride, t.stride + missing, 0);
  t.rank = TILEWISE_MAX_RANK;
  return t;
}

// A mask of bytes, each of 8 elements, read as bool.
tilewise_tensor as_bits(tilewise_tensor t) {
  t = as_four_dimensions(t);
  const int last = TILEWISE_MAX_RANK - 1;
  t.dtype = TILEWISE_BIT;
  for (int i = 0; i < last; ++i) t.stride[i] *= 8;
  if (t.stride[last] != 1 && t.shape[last] > 1)  // bits of bytes that stand apart have no one stride
    throw nb::value_error("mask has bits in bytes that stand apart; accepted: innermost stride 1");
  t.stride[last] = 1;
  t.shape[last] *= 8;
  return t;
}

// Keys of a sequence of k, which is [batch, seqlen_kv, ...], or pages or slots of it; 0 = not known.
int64_t keys_of(const tilewise_tensors& t) {
  if (t.k.rank != TILEWISE_MAX_RANK) return 0;
  return t.page_table.rank == 2 ? t.page_table.shape[1] * t.k.shape[1] : t.k.shape[1];
}

// Frameworks draw random numbers as int64; the state is their bits.
tilewise_tensor as_unsigned(tilewise_tensor t) {
  if (t.dtype == TILEWISE_I64) t.dtype = TILEWISE_U64;
  return t;
}

}  // namespace

Call::Call(const nb::dict& arrays, const Setting& setting) {
  static_assert(std::size(kFields) == kMaxArrays);
  for (const auto& [key, array] : arrays) {
    if (array.is_none()) continue;
    const char* name = nb::cast<const char*>(key);
    const Field* field = std::find_if(std::begin(kFields), std::end(kFields),
                                      [&](const Field& f) { return std::strcmp(f.name, name) == 0; });
    if (field == std::end(kFields)) throw nb::key_error(name);
    const tilewise_tensor& read =
        arrays_[field - kFields].emplace(field->name, array, setting.stream_of_arrays()).tensor();
    tilewise_tensor& tensor = tensors_.*field->tensor;
    switch (field->kind) {
      case Kind::plain:
        tensor = read;
        break;
      case Kind::rows:
        tensor = as_bshd(read, setting);
        break;
      case Kind::scores:
        tensor = as_four_dimensions(read);
        break;
      case Kind::bits:
        tensor = as_bits(read);
        break;
      case Kind::state:
        tensor = as_unsigned(read);
        break;
    }
  }
  // The last byte of a row may hold bits past the last key.
  int64_t& columns = tensors_.mask.shape[TILEWISE_MAX_RANK - 1];
  const int64_t keys = keys_of(tensors_);
  if (tensors_.mask.dtype == TILEWISE_BIT && columns - keys > 0 && columns - keys < 8 && keys > 0)
    columns = keys;
}

tilewise_tensor as_bshd(tilewise_tensor tensor, const Setting& setting) {
  if (!setting.bhsd || tensor.rank != 4) return tensor;
  std::swap(tensor.shape[1], tensor.shape[2]);
  std::swap(tensor.stride[1], tensor.stride[2]);
  return tensor;
}

void raise_if_refused(tilewise_code code, const tilewise_error& error) {
  PyObject* type = nullptr;
  switch (code) {
    case TILEWISE_OK:
      return;
    case TILEWISE_INVALID:
      type = PyExc_ValueError;
      break;
    case TILEWISE_UNSUPPORTED:
      type = PyExc_NotImplementedError;
      break;
    case TILEWISE_OUT_OF_MEMORY:
      type = PyExc_MemoryError;
      break;
    case TILEWISE_DEVICE:
      type = PyExc_RuntimeError;
      break;
  }
  PyErr_SetString(type, error.message);
  throw nb::python_error();
}

}  // namespace tilewise_python
