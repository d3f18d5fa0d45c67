// What a call of `attend` is: its options, and whether the tensors of the file fit each other.
#include "cli/attend_input.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/text.h"

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
                                         "k_scales",
                                         "v_scales",
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

std::string numbers(const tilewise_tensor& t, int axis) { return std::to_string(t.shape[axis]); }

}  // namespace

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
    if (!(p.softcap >= 0) || !std::isfinite(p.softcap) || (p.softcap == 0) != (*value == 0))
      return wrong("--softcap was given '" + a.softcap +
                   "'; accepted is 0 (none) or a positive number of fp32.");
  }
  if (!a.dropout.empty()) {
    const auto value = parse_number("--dropout", a.dropout);
    if (!value || !(*value >= 0 && *value < 1))
      return wrong("--dropout was given '" + a.dropout + "'; accepted is a probability in [0,1).");
    p.dropout_p = static_cast<float>(*value);
  }
  if (!a.seed.empty()) {
    uint64_t seed = 0;
    const char* end = a.seed.data() + a.seed.size();
    const auto [stop, error] = std::from_chars(a.seed.data(), end, seed);
    if (error != std::errc() || stop != end)
      return wrong("--seed was given '" + a.seed + "'; accepted is a whole number from 0 to 2^64 - 1.");
    if (a.dropout.empty())
      return wrong("--seed was given without --dropout; accepted is --dropout P --seed N.");
    tensors.dropout_seed = seed;
  }
  if (!a.window.empty()) {
    const auto window = parse_window("--window", a.window);
    if (!window) return window.status();
    p.with_window(window->first, window->second);
  }
  p.deterministic = a.deterministic;
  if (!known_causal(a.causal)) return refused_causal(a.causal);
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
    warnings.push_back("tensor " + in_quotes(t.name) + " is not read" +
                       (hint.empty() ? "." : "; is it " + hint + "?"));
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
