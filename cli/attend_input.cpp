#include "cli/attend_input.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cli/text.h"
#include "core/half.h"

namespace tilewise::cli {
namespace {

const std::vector<std::string> kNames = {"q",
                                         "k",
                                         "v",
                                         "bias",
                                         "mask",
                                         "q_lengths",
                                         "kv_lengths",
                                         "kv_starts",
                                         "q_offset",
                                         "cu_seqlens_q",
                                         "cu_seqlens_kv",
                                         "page_table",
                                         "cache_batch_idx",
                                         "segment_ids_q",
                                         "segment_ids_kv",
                                         "kv_ranges",
                                         "alibi_slopes",
                                         "sinks",
                                         "dout",
                                         "dlse"};

// Names of other libraries for the same thing (docs/names.md), and near misses.
constexpr std::pair<const char*, const char*> kAliases[] = {{"query", "q"},
                                                            {"key", "k"},
                                                            {"value", "v"},
                                                            {"cache_seqlens", "kv_lengths"},
                                                            {"seqused_k", "kv_lengths"},
                                                            {"nonpad_kv_seqlen", "kv_lengths"},
                                                            {"seqused_q", "q_lengths"},
                                                            {"block_table", "page_table"},
                                                            {"block_tables", "page_table"},
                                                            {"cu_seqlens_k", "cu_seqlens_kv"},
                                                            {"s_aux", "sinks"},
                                                            {"attn_mask", "mask"},
                                                            {"attn_bias", "bias"},
                                                            {"leftpad_k", "kv_starts"},
                                                            {"do", "dout"},
                                                            {"grad_out", "dout"}};

// Results, which may well lie in the same file.
constexpr const char* kResults[] = {"o", "lse", "dq", "dk", "dv", "dbias", "dsinks"};

Status wrong(const std::string& sentence) { return Status(Code::invalid, sentence); }

double element(const FileTensor& t, int64_t i) {
  const std::byte* at = t.data + i * t.type->bits / 8;
  uint64_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(t.type->bits / 8));
  const std::string_view type = t.type->name;
  if (type == "F64") return std::bit_cast<double>(bits);
  if (type == "F32") return std::bit_cast<float>(static_cast<uint32_t>(bits));
  if (type == "F16") return float_of_f16(static_cast<uint16_t>(bits));
  return float_of_bf16(static_cast<uint16_t>(bits));
}

void store(DType dtype, std::byte* data, int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::f32) {
    std::memcpy(data + 4 * i, &narrow, 4);
    return;
  }
  const uint16_t half = dtype == DType::f16 ? f16_of_float(narrow) : bf16_of_float(narrow);
  std::memcpy(data + 2 * i, &half, 2);
}

bool is_float(const FileTensor& t) {
  const std::string_view type = t.type->name;
  return type == "F64" || type == "F32" || type == "F16" || type == "BF16";
}

bool aligned(const FileTensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(std::max(t.type->bits / 8, 1)) == 0;
}

tilewise_tensor make(void* data, DType dtype, const std::vector<int64_t>& shape) {
  tilewise_tensor t = tilewise_tensor_make(data, static_cast<int32_t>(dtype),
                                           static_cast<int32_t>(shape.size()), shape.data());
  t.flags |= TILEWISE_READ_ONLY;
  return t;
}

void* placeholder(const FileTensor& t) { return const_cast<std::byte*>(t.data); }

std::string numbers(const tilewise_tensor& t, int axis) { return std::to_string(t.shape[axis]); }

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
  tilewise_tensor view = make(placeholder(*t), wanted, t->shape);
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
  tensors.*to = make(placeholder(*t), dtype, shape);
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
    tensors.*to = make(placeholder(*t), dtype, t->shape);
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
  tensors.*to = make(buffer.data(), dtype, t->shape);
  owned_.push_back(std::move(buffer));
  return {};
}

Status AttendInput::read_options(const AttendArguments& a) {
  Problem& p = options;
  if (!a.scale.empty()) {
    const auto value = parse_number("--scale", a.scale);
    if (!value) return value.status();
    p.softmax_scale = static_cast<float>(*value);
    if (!std::isfinite(p.softmax_scale))
      return wrong("--scale was given '" + a.scale + "'; accepted is a number of fp32.");
  }
  if (!a.scale_rows.empty()) {
    const auto value = parse_integer("--scale-rows", a.scale_rows, 1);
    if (!value) return value.status();
    p.scale_rows = *value;
  }
  if (!a.softcap.empty()) {
    const auto value = parse_number("--softcap", a.softcap);
    if (!value) return value.status();
    p.softcap = static_cast<float>(*value);
    if (!(p.softcap >= 0) || !std::isfinite(p.softcap))
      return wrong("--softcap was given '" + a.softcap + "'; accepted is a number from 0 (0 = none).");
  }
  if (!a.dropout.empty()) {
    const auto value = parse_number("--dropout", a.dropout);
    if (!value || !(*value >= 0 && *value < 1))
      return wrong("--dropout was given '" + a.dropout + "'; accepted is a probability in [0,1).");
    p.dropout_p = static_cast<float>(*value);
  }
  if (!a.seed.empty()) {
    const auto value = parse_integer("--seed", a.seed, 0);
    if (!value) return value.status();
    if (a.dropout.empty())
      return wrong("--seed was given without --dropout; accepted is --dropout P --seed N.");
    tensors.dropout_seed = static_cast<uint64_t>(*value);
  }
  if (!a.window.empty()) {
    const auto window = parse_window("--window", a.window);
    if (!window) return window.status();
    p.with_window(window->first, window->second);
  }
  p.deterministic = a.deterministic;
  if (!a.causal.empty() && a.causal != "yes" && a.causal != "bottom-right" && a.causal != "top-left")
    return wrong("--causal was given '" + a.causal + "'; accepted is nothing, bottom-right or top-left.");
  p.causal = !a.causal.empty();
  if (a.causal == "top-left") p.position = TILEWISE_TOP_LEFT;

  const bool in_file = file.find("q_offset") != nullptr;
  if (!a.q_offset.empty()) {
    const auto value = parse_integer("--q-offset", a.q_offset, INT64_MIN);
    if (!value) return value.status();
    if (in_file) return wrong("--q-offset was given and the file has q_offset; accepted is one of them.");
    tensors.q_offset_value = *value;
  }
  if (in_file || !a.q_offset.empty()) {
    if (!a.causal.empty() && a.causal != "yes")
      return wrong("--causal " + a.causal + " was given together with " +
                   (in_file ? "the tensor q_offset" : "--q-offset") +
                   "; accepted is plain --causal beside an offset.");
    p.position = TILEWISE_GIVEN;
  }
  return {};
}

Status AttendInput::read_tensors(DType dtype) {
  for (const char* name : {"q", "k", "v"})
    if (!file.find(name)) {
      std::string has;
      for (const FileTensor& t : file.tensors())
        if (has.size() < 200) has += (has.empty() ? "" : ", ") + t.name.substr(0, 60);
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

// What the library would refuse too, said here in the file's own terms, with the other layout in view.
Status AttendInput::check_shapes() const {
  const tilewise_tensor &q = tensors.q, &k = tensors.k, &v = tensors.v;
  const int heads = packed ? 1 : 2, dim = packed ? 2 : 3;
  const auto text = [&](const char* name) { return file.find(name)->to_string(); };
  std::string why;
  if (!packed && ((!cache && q.shape[0] != k.shape[0]) || k.shape[0] != v.shape[0])) {
    why = "batch differs: " + text("q") + ", " + text("k") + ", " + text("v");
  } else if (q.shape[dim] != k.shape[dim]) {
    why = "head_dim differs: " + text("q") + ", " + text("k");
  } else if (k.shape[heads] != v.shape[heads] || k.shape[packed ? 0 : 1] != v.shape[packed ? 0 : 1]) {
    why = text("k") + " and " + text("v") + " differ in more than head_dim";
  } else if (k.shape[heads] == 0 ? q.shape[heads] != 0 : q.shape[heads] % k.shape[heads] != 0) {
    why = "heads_q " + numbers(q, heads) + " is no multiple of heads_kv " + numbers(k, heads) + ": " +
          text("q") + ", " + text("k");
  }
  if (why.empty() && tensors.dout.dtype) {
    const tilewise_tensor& dout = tensors.dout;
    bool as_o = dout.shape[dim] == v.shape[dim];
    for (int i = 0; i < dim; ++i) as_o = as_o && dout.shape[i] == q.shape[i];
    if (!as_o)
      why = text("dout") + " has not the shape of o, which is q's with v's head_dim: " + text("q") + ", " +
            text("v");
  }
  if (why.empty()) return {};
  why += std::string(packed ? "; packed tensors are [total, heads, head_dim]"
                     : bhsd ? "; read as bhsd, [batch, heads, seqlen, head_dim]"
                            : "; read as bshd, [batch, seqlen, heads, head_dim]");
  if (!packed && q.shape[1] != 0 && k.shape[1] != 0 && q.shape[1] % k.shape[1] == 0 &&
      k.shape[1] == v.shape[1])
    why += bhsd ? " (without --layout bhsd the heads would fit)" : " (perhaps --layout bhsd?)";
  return wrong(why + ".");
}

void AttendInput::describe() {
  const tilewise_tensor &q = tensors.q, &k = tensors.k, &v = tensors.v;
  const FileTensor& in_file = *file.find("q");
  reading = "q " + shape_text(in_file.shape) + " read as ";
  if (packed) {
    const int64_t batch = std::max<int64_t>(tensors.cu_seqlens_q.shape[0] - 1, 0);
    reading += "packed [total, heads, head_dim]: batch " + std::to_string(batch) + ", total_q " +
               numbers(q, 0) + ", heads_q " + numbers(q, 1) + ", head_dim " + numbers(q, 2) + "; total_kv " +
               numbers(k, 0) + ", heads_kv " + numbers(k, 1) + ", head_dim_v " + numbers(v, 2);
  } else {
    reading += std::string(bhsd ? "bhsd" : "bshd") + ": batch " + numbers(q, 0) + ", seqlen_q " +
               numbers(q, 1) + ", heads_q " + numbers(q, 2) + ", head_dim " + numbers(q, 3) + "; " +
               (tensors.page_table.dtype ? numbers(k, 0) + " pages of " + numbers(k, 1) + " keys"
                                         : "seqlen_kv " + numbers(k, 1)) +
               ", heads_kv " + numbers(k, 2) + ", head_dim_v " + numbers(v, 3);
    // Fewer keys than key heads is rare; the exchanged pair is usual.
    if (!cache && k.shape[1] < k.shape[2] && (k.shape[1] > 1 || q.shape[1] > 1) && k.shape[2] > 8)
      warnings.push_back("k " + shape_text(file.find("k")->shape) + " has " + numbers(k, 1) + " keys and " +
                         numbers(k, 2) + " heads when read as " + (bhsd ? "bhsd" : "bshd") +
                         "; if it is the other way " + "round, " +
                         (bhsd ? "leave out --layout bhsd." : "give --layout bhsd."));
  }
  reading += std::string(", ") + name_of(static_cast<DType>(q.dtype));
  if (q.dtype != static_cast<int32_t>(in_file.type->dtype))
    reading += std::string(" (converted from ") + in_file.type->name + ")";
}

void AttendInput::warn_of_unknown_names() {
  for (const FileTensor& t : file.tensors()) {
    if (std::find(kNames.begin(), kNames.end(), t.name) != kNames.end()) continue;
    if (std::find(std::begin(kResults), std::end(kResults), t.name) != std::end(kResults)) continue;
    std::string hint = nearest(t.name, kNames);
    for (const auto& [alias, ours] : kAliases)
      if (t.name == alias) hint = ours;
    std::string shown = t.name.substr(0, 80);
    std::replace_if(
        shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    warnings.push_back("tensor '" + shown + "' is not read" + (hint.empty() ? "." : "; is it " + hint + "?"));
  }
}

Expected<AttendInput> AttendInput::read(const AttendArguments& a) {
  AttendInput in;
  if (a.layout != "bshd" && a.layout != "bhsd")
    return wrong("--layout was given '" + a.layout + "'; accepted is bshd or bhsd.");
  in.bhsd = a.layout == "bhsd";
  DType dtype = DType::none;
  if (!a.dtype.empty()) {
    const auto parsed = parse_dtype("--dtype", a.dtype);
    if (!parsed) return parsed.status();
    dtype = *parsed;
  }
  auto file = SafetensorsFile::open(a.input);
  if (!file) return file.status();
  in.file = std::move(*file);
  if (Status s = in.read_options(a); !s) return s;
  if (Status s = in.read_tensors(dtype); !s) return s;
  if (Status s = in.check_shapes(); !s) return s;
  if (a.grad && !in.tensors.dout.dtype)
    return wrong("--grad needs the tensor dout in " + a.input + " (the gradient of o, with o's shape).");
  if (!a.grad) in.tensors.dout = in.tensors.dlse = {};
  in.describe();
  in.warn_of_unknown_names();
  return in;
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
      for (int64_t i = 0; i < n; ++i) store(dtype, buffer.data(), i, element(*p.from, i));
    }
    to.data = buffer.data();
    owned_.push_back(std::move(buffer));
  }
  pending_.clear();
  return {};
}

std::vector<int64_t> AttendInput::file_shape(const tilewise_tensor& like) const {
  std::vector<int64_t> shape(like.shape, like.shape + like.rank);
  if (bhsd && like.rank == 4) std::swap(shape[1], shape[2]);
  return shape;
}

Tensor AttendInput::view(void* data, DType dtype, const std::vector<int64_t>& in_file) const {
  Tensor t = tilewise_tensor_make(data, static_cast<int32_t>(dtype), static_cast<int32_t>(in_file.size()),
                                  in_file.data());
  return bhsd && t.rank == 4 ? t.bhsd_as_bshd() : t;
}

}  // namespace tilewise::cli
