// The tensors of a file as the library takes them: which dtypes and ranks each may have, and conversions.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cli/attend_input.h"
#include "cli/text.h"
#include "core/element.h"

namespace tilewise::cli {
namespace {

// Of a floating-point tensor, wherever in the file it begins.
double element(const FileTensor& t, int64_t i) {
  alignas(8) std::byte copy[8];
  const int64_t bytes = t.type->bits / 8;
  std::memcpy(copy, t.data + i * bytes, static_cast<size_t>(bytes));
  if (t.type->dtype != DType::none) return load_element(copy, t.type->dtype, 0);
  double value = 0;  // F64
  std::memcpy(&value, copy, sizeof value);
  return value;
}

bool is_float(const FileTensor& t) {
  const std::string_view type = t.type->name;
  return type == "F64" || type == "F32" || type == "F16" || type == "BF16";
}

bool aligned(const FileTensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(std::max(t.type->bits / 8, 1)) == 0;
}

// Of the file's own bytes, which may be those of another dtype until convert(), or of converted ones.
tilewise_tensor read_only(const std::byte* data, DType dtype, const std::vector<int64_t>& shape) {
  tilewise_tensor t = tilewise_tensor_make(const_cast<std::byte*>(data), static_cast<int32_t>(dtype),
                                           static_cast<int32_t>(shape.size()), shape.data());
  t.flags |= TILEWISE_READ_ONLY;
  return t;
}

}  // namespace

Expected<const FileTensor*> AttendInput::used(const char* name) {
  const FileTensor* t = file.find(name);
  if (!t) return t;
  // A size 0 elsewhere makes the format accept any sizes; strides and offsets must still fit.
  int64_t n = 1;
  for (const int64_t size : t->shape)
    if (__builtin_mul_overflow(n, std::max<int64_t>(size, 1), &n) || n > int64_t{1} << 56)
      return wrong(t->to_string() + " has sizes whose product passes 2^56; smaller ones are accepted.");
  used_.push_back(t);
  return t;
}

// A floating-point tensor, kept as it is where `wanted` is none. `rows`: [batch, seqlen, heads, dim] in the
// file's layout, or packed.
Status AttendInput::take(const char* name, tilewise_tensor Tensors::*to, DType wanted, bool rows) {
  const auto found = used(name);
  if (!found) return found.status();
  const FileTensor* t = *found;
  if (!t) return {};
  const bool quantized = is_quantized(t->type->dtype) && (to == &Tensors::k || to == &Tensors::v);
  if (!is_float(*t) && !quantized)
    return wrong(
        t->to_string() +
        " is no floating-point tensor; accepted are F32, F16, BF16 and, with --dtype, F64; of k and v "
        "also F8_E4M3 and I8, with k_scales and v_scales.");
  if (quantized) wanted = DType::none;  // stays as it is
  if (wanted == DType::none) wanted = t->type->dtype;
  if (wanted == DType::none)
    return wrong(t->to_string() +
                 " has 64 bits; accepted are F32, F16 and BF16, or --dtype f32 to convert it.");
  if (t->shape.size() > TILEWISE_MAX_RANK)
    return wrong(t->to_string() + " has " + std::to_string(t->shape.size()) +
                 " dimensions; at most 4 are accepted.");
  if (rows) {
    const size_t rank = packed ? 3 : 4;
    if (t->shape.size() != rank) {
      if (!packed && t->shape.size() == 3)
        return wrong(t->to_string() + " has 3 dimensions; accepted are 4 (" +
                     (bhsd ? "[batch, heads, seqlen, head_dim]" : "[batch, seqlen, heads, head_dim]") +
                     "), or 3 ([total, heads, head_dim]) with cu_seqlens_q and cu_seqlens_kv in the file.");
      return wrong(t->to_string() + " has " + std::to_string(t->shape.size()) + " dimensions; accepted are " +
                   (packed ? "3 ([total, heads, head_dim]), because the file has cu_seqlens_q."
                           : "4 ([batch, seqlen, heads, head_dim])."));
    }
  }
  tilewise_tensor view = read_only(t->data, wanted, t->shape);
  if (rows && bhsd) view = Tensor(view).bhsd_as_bshd();
  tensors.*to = view;
  if (wanted != t->type->dtype || !aligned(*t)) pending_.push_back({t, to});
  return {};
}

// bias or mask, with leading dimensions added up to [batch, heads, seqlen_q, seqlen_kv].
Status AttendInput::take_score(const char* name, tilewise_tensor Tensors::*to, bool boolean) {
  const auto found = used(name);
  if (!found) return found.status();
  const FileTensor* t = *found;
  if (!t) return {};
  if (t->shape.size() > 4)
    return wrong(t->to_string() + " has " + std::to_string(t->shape.size()) +
                 " dimensions; accepted are up to 4, [batch, heads_q, seqlen_q, seqlen_kv].");
  DType dtype = t->type->dtype;
  if (boolean) {
    if (dtype != DType::boolean && std::string_view(t->type->name) != "U8")
      return wrong(t->to_string() +
                   " is not boolean; accepted are BOOL and U8 (an additive mask is named bias).");
    dtype = DType::boolean;
  } else {
    if (!is_float(*t))
      return wrong(
          t->to_string() +
          " is no floating-point tensor; accepted are F32, F16, BF16 and F64 (a boolean one is named mask).");
    if (dtype == DType::none) dtype = DType::f32;
  }
  std::vector<int64_t> shape(4 - t->shape.size(), 1);
  shape.insert(shape.end(), t->shape.begin(), t->shape.end());
  tensors.*to = read_only(t->data, dtype, shape);
  if (!boolean && (dtype != t->type->dtype || !aligned(*t))) pending_.push_back({t, to});
  return {};
}

// int32 for the library, read from I32 or I64; cu_seqlens (wide) are taken as they are.
Status AttendInput::take_integers(const char* name, tilewise_tensor Tensors::*to, int rank, bool wide) {
  const auto found = used(name);
  if (!found) return found.status();
  const FileTensor* t = *found;
  if (!t) return {};
  const DType given = t->type->dtype;
  if (given != DType::i32 && given != DType::i64)
    return wrong(t->to_string() + " holds no integers that are read; accepted are I32 and I64.");
  if (static_cast<int>(t->shape.size()) != rank)
    return wrong(t->to_string() + " has " + std::to_string(t->shape.size()) + " dimensions; accepted are " +
                 std::to_string(rank) + ".");
  const DType dtype = wide ? given : DType::i32;
  if (dtype == given && aligned(*t)) {
    tensors.*to = read_only(t->data, dtype, t->shape);
    return {};
  }
  const int64_t n = t->elements();
  const int64_t size = bits_of(dtype) / 8;
  Buffer buffer(n * size);
  if (!buffer.data()) return Status(Code::out_of_memory, "no memory for " + t->to_string() + ".");
  for (int64_t i = 0; i < n; ++i) {
    int64_t value = 0;
    if (given == DType::i64) {
      std::memcpy(&value, t->data + 8 * i, 8);
    } else {
      int32_t narrow = 0;
      std::memcpy(&narrow, t->data + 4 * i, 4);
      value = narrow;
    }
    if (dtype == DType::i32) {
      if (value < INT32_MIN || value > INT32_MAX)
        return wrong(t->to_string() + " holds " + std::to_string(value) +
                     "; accepted are values of 32 bits.");
      const auto narrow = static_cast<int32_t>(value);
      std::memcpy(buffer.data() + 4 * i, &narrow, 4);
    } else {
      std::memcpy(buffer.data() + 8 * i, &value, 8);
    }
  }
  tensors.*to = read_only(buffer.data(), dtype, t->shape);
  owned_.push_back(std::move(buffer));
  return {};
}

Status AttendInput::read_tensors(DType dtype) {
  for (const char* name : {"q", "k", "v"})
    if (!file.find(name)) {
      std::string has;
      for (const FileTensor& t : file.tensors())
        if (has.size() < 200) has += (has.empty() ? "" : ", ") + in_quotes(t.name);
      return wrong(file.path() + ": tensor " + name + " is missing; q, k and v are needed, the file has " +
                   (has.empty() ? "no tensor" : has) + ".");
    }
  const bool packed_q = file.find("cu_seqlens_q"), packed_kv = file.find("cu_seqlens_kv");
  if (packed_q != packed_kv)
    return wrong(file.path() + ": " + (packed_q ? "cu_seqlens_q" : "cu_seqlens_kv") +
                 " is given alone; packed tensors need cu_seqlens_q and cu_seqlens_kv.");
  packed = packed_q;
  cache = file.find("page_table") ? "page_table" : file.find("cache_batch_idx") ? "cache_batch_idx" : nullptr;
  if (packed && cache)
    return wrong(file.path() + ": " + cache +
                 " is given beside cu_seqlens_q; accepted is one of them: a cache or packed tensors.");
  if (packed && bhsd)
    return wrong(
        "--layout bhsd was given for packed tensors; accepted is [total, heads, head_dim] with cu_seqlens.");

  struct Rows {
    const char* name;
    tilewise_tensor Tensors::*to;
  };
  for (const Rows& r :
       {Rows{"q", &Tensors::q}, {"k", &Tensors::k}, {"v", &Tensors::v}, {"dout", &Tensors::dout}})
    if (Status s = take(r.name, r.to, dtype, true); !s) return s;
  for (const Rows& r : {Rows{"alibi_slopes", &Tensors::alibi_slopes},
                        {"sinks", &Tensors::sinks},
                        {"k_scales", &Tensors::k_scales},
                        {"v_scales", &Tensors::v_scales},
                        {"dlse", &Tensors::dlse}})
    if (Status s = take(r.name, r.to, DType::f32, false); !s) return s;
  if (Status s = take_score("bias", &Tensors::bias, false); !s) return s;
  if (Status s = take_score("mask", &Tensors::mask, true); !s) return s;

  const int by_row = packed ? 1 : 2;
  struct Integers {
    const char* name;
    tilewise_tensor Tensors::*to;
    int rank;
    bool wide;
  };
  for (const Integers& i : {Integers{"q_lengths", &Tensors::q_lengths, 1, false},
                            {"kv_lengths", &Tensors::kv_lengths, 1, false},
                            {"kv_starts", &Tensors::kv_starts, 1, false},
                            {"page_table", &Tensors::page_table, 2, false},
                            {"cache_batch_idx", &Tensors::cache_batch_idx, 1, false},
                            {"q_offset", &Tensors::q_offset, 1, false},
                            {"cu_seqlens_q", &Tensors::cu_seqlens_q, 1, true},
                            {"cu_seqlens_kv", &Tensors::cu_seqlens_kv, 1, true},
                            {"segment_ids_q", &Tensors::segment_ids_q, by_row, false},
                            {"segment_ids_kv", &Tensors::segment_ids_kv, by_row, false},
                            {"kv_ranges", &Tensors::kv_ranges, by_row + 1, false}})
    if (Status s = take_integers(i.name, i.to, i.rank, i.wide); !s) return s;
  return {};
}

int64_t AttendInput::file_bytes() const {
  int64_t bytes = 0;
  for (const FileTensor* t : used_) bytes += t->bytes;
  return bytes;
}

int64_t AttendInput::conversion_bytes() const {
  int64_t bytes = 0;
  for (const Pending& p : pending_)
    bytes += p.from->elements() * bits_of(static_cast<DType>((tensors.*p.to).dtype)) / 8;
  return bytes;
}

Status AttendInput::convert() {
  for (const Pending& p : pending_) {
    tilewise_tensor& to = tensors.*p.to;
    if (to.dtype == TILEWISE_NONE) continue;
    const DType dtype = static_cast<DType>(to.dtype);
    const int64_t n = p.from->elements();
    Buffer buffer(n * bits_of(dtype) / 8);
    if (!buffer.data())
      return Status(Code::out_of_memory, "no memory to convert " + p.from->to_string() + ".");
    if (dtype == p.from->type->dtype) {
      std::memcpy(buffer.data(), p.from->data, static_cast<size_t>(p.from->bytes));
    } else {
      for (int64_t i = 0; i < n; ++i) {
        const double value = element(*p.from, i);
        store_element(buffer.data(), dtype, i, static_cast<float>(value));
        if (std::isfinite(value) && !std::isfinite(load_element(buffer.data(), dtype, i)))
          return wrong(p.from->to_string() + printed(" holds %g, which is infinite as ", value) +
                       name_of(dtype) + "; accepted are values within its range.");
      }
    }
    to.data = buffer.data();
    owned_.push_back(std::move(buffer));
  }
  pending_.clear();
  return {};
}

}  // namespace tilewise::cli
