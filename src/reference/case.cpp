#include "reference/case.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace tilewise {
namespace {

using Text = std::string_view;

std::vector<Text> split(Text text, char separator) {
  std::vector<Text> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    const Text part = text.substr(0, end);
    if (!part.empty()) parts.push_back(part);
    if (end == Text::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

bool read(Text text, int64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool read(Text text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool read(Text text, double* value) {
  const std::string copy(text);
  char* end = nullptr;
  *value = std::strtod(copy.c_str(), &end);
  return !copy.empty() && *end == '\0';
}

bool read(Text text, float* value) {
  double wide = 0.0;
  if (!read(text, &wide)) return false;
  *value = static_cast<float>(wide);
  return true;
}

bool read(Text text, bool* value) {
  *value = text == "1";
  return text == "0" || text == "1";
}

bool read(Text text, int32_t* value) {
  int64_t wide = 0;
  if (!read(text, &wide) || wide < INT32_MIN || wide > INT32_MAX) return false;
  *value = static_cast<int32_t>(wide);
  return true;
}

bool read(Text text, std::string* value) {
  *value = text;
  return !text.empty();
}

bool read(Text text, DType* value) {
  for (DType dtype :
       {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64, DType::f8e4m3, DType::i8}) {
    if (text == name_of(dtype)) {
      *value = dtype;
      return true;
    }
  }
  return false;
}

template <typename T>
bool read(Text text, std::vector<T>* list) {
  list->clear();
  for (Text part : split(text, ',')) {
    if (!read(part, &list->emplace_back())) return false;
  }
  return !list->empty();
}

// "b1qk:random:0.7" into shape and values.
bool read_scores(Text text, std::string* shape, std::string* values) {
  const size_t colon = text.find(':');
  if (colon != 4) return false;
  *shape = text.substr(0, 4);
  *values = text.substr(5);
  constexpr char kLetters[] = "bhqk";
  for (size_t n = 0; n < 4; ++n) {
    if ((*shape)[n] != kLetters[n] && (*shape)[n] != '1') return false;
  }
  return !values->empty();
}

bool read_wants(Text text, int32_t* wants) {
  *wants = 0;
  for (Text part : split(text, ',')) {
    if (part == "dq") {
      *wants |= TILEWISE_WANT_DQ;
    } else if (part == "dk") {
      *wants |= TILEWISE_WANT_DK;
    } else if (part == "dv") {
      *wants |= TILEWISE_WANT_DV;
    } else if (part == "dbias") {
      *wants |= TILEWISE_WANT_DBIAS;
    } else if (part == "dsinks") {
      *wants |= TILEWISE_WANT_DSINKS;
    } else {
      return false;
    }
  }
  return *wants != 0;
}

bool read_answer(Text key, Text value, KnownAnswer* answer) {
  const size_t at = key.find('@');
  std::vector<int64_t> index;
  if (!read(key.substr(at + 1), &index) || index.size() != 3) return false;
  answer->output = key.substr(0, at);
  answer->batch = index[0];
  answer->row = index[1];
  answer->head = index[2];
  return read(value, &answer->value);
}

// Negative sizes stand for "not given" while a line is read.
bool read_size(Text text, int64_t* size) { return read(text, size) && *size >= 0; }

// True where the key is known and its value is well formed.
bool read_key(Text key, Text value, Case* c) {
  Problem& p = c->problem;
  if (key == "name") return read(value, &c->name);
  if (key == "batch") return read_size(value, &p.batch);
  if (key == "seqlen_q") return read_size(value, &p.seqlen_q);
  if (key == "seqlen_kv") return read_size(value, &p.seqlen_kv);
  if (key == "total_q") return read_size(value, &p.total_q);
  if (key == "total_kv") return read_size(value, &p.total_kv);
  if (key == "heads_q") return read_size(value, &p.heads_q);
  if (key == "heads_kv") return read_size(value, &p.heads_kv);
  if (key == "head_dim") return read_size(value, &p.head_dim);
  if (key == "head_dim_v") return read_size(value, &p.head_dim_v);
  if (key == "cu_seqlens_q") return read(value, &c->cu_seqlens_q);
  if (key == "cu_seqlens_kv") return read(value, &c->cu_seqlens_kv);
  if (key == "cu_dtype") return read(value, &c->cu_dtype);
  if (key == "q_lengths") return read(value, &c->q_lengths);
  if (key == "kv_lengths") return read(value, &c->kv_lengths);
  if (key == "kv_starts") return read(value, &c->kv_starts);
  if (key == "page_size") return read(value, &p.page_size) && p.page_size > 0;
  if (key == "pages")
    return read(value, &c->pages) && (value == "shuffled" || value == "reversed" || value == "shared");
  if (key == "cache_batch_idx") return read(value, &c->cache_batch_idx);
  if (key == "softmax_scale") return read(value, &p.softmax_scale);
  if (key == "softcap") return read(value, &p.softcap);
  if (key == "dropout") return read(value, &p.dropout_p);
  if (key == "dropout_seed") return read(value, &c->dropout_seed);
  if (key == "dropout_offset") return read(value, &c->dropout_offset);
  if (key == "dtype") return read(value, &c->dtypes);
  if (key == "dtype_kv") return read(value, &c->dtype_kv) && is_quantized(c->dtype_kv);
  if (key == "scale_rows") return read(value, &p.scale_rows) && p.scale_rows > 0;
  if (key == "dtype_o") return read(value, &c->dtype_o);
  if (key == "dtype_grad") return read(value, &c->dtype_grad);
  if (key == "bias") return read_scores(value, &c->bias_shape, &c->bias_values);
  if (key == "bias_dtype") return read(value, &c->bias_dtype);
  if (key == "mask") return read_scores(value, &c->mask_shape, &c->mask_values);
  if (key == "mask_bits") {
    c->mask_bits = true;
    return read_scores(value, &c->mask_shape, &c->mask_values);
  }
  if (key == "segments") return read(value, &c->segments);
  if (key == "kv_ranges") return read(value, &c->kv_ranges);
  if (key == "alibi") return read(value, &c->alibi) && (value == "h" || value == "bh");
  if (key == "sinks") return read(value, &c->sinks);
  if (key == "lse") return read(value, &c->lse);
  if (key == "dlse") return read(value, &c->dlse);
  if (key == "delta") return read(value, &c->delta);
  if (key == "accumulate") return read(value, &p.accumulate);
  if (key == "deterministic") return read(value, &p.deterministic);
  if (key == "batch_invariant") return read(value, &p.batch_invariant);
  if (key == "wants") return read_wants(value, &p.wants);
  if (key == "inputs") return read(value, &c->inputs);
  if (key == "poison_unseen") return read(value, &c->poison_unseen);
  if (key == "layout") return read(value, &c->layouts[""]);
  if (key.starts_with("layout.")) return read(value, &c->layouts[std::string(key.substr(7))]);
  if (key.find('@') != Text::npos) return read_answer(key, value, &c->answers.emplace_back());
  if (key == "direction") {
    c->forward = value != "backward";
    c->backward = value != "forward";
    return value == "forward" || value == "backward" || value == "both";
  }
  if (key == "causal") {
    p.causal = 1;
    if (p.position != TILEWISE_GIVEN)
      p.position = value == "top-left" ? TILEWISE_TOP_LEFT : TILEWISE_BOTTOM_RIGHT;
    return value == "top-left" || value == "bottom-right";
  }
  if (key == "position") {
    if (p.position != TILEWISE_GIVEN)
      p.position = value == "top-left" ? TILEWISE_TOP_LEFT : TILEWISE_BOTTOM_RIGHT;
    return value == "top-left" || value == "bottom-right";
  }
  if (key == "q_offset") {
    p.position = TILEWISE_GIVEN;
    if (!read(value, &c->q_offset)) return false;
    if (value.find(',') == Text::npos) {
      c->q_offset_value = c->q_offset[0];
      c->q_offset.clear();
    }
    return true;
  }
  if (key == "window") {
    std::vector<int64_t> sides;
    if (!read(value, &sides) || sides.size() != 2) return false;
    p.with_window(sides[0], sides[1]);
    return true;
  }
  return false;
}

Status wrong(const std::string& what, Text line) {
  return {Code::invalid, "case: " + what + " in \"" + std::string(line) + "\"; keys: tests/cases/README.md"};
}

bool one_each(const std::vector<int64_t>& list, int64_t batch) {
  return list.empty() || static_cast<int64_t>(list.size()) == batch;
}

// Longest sequence of a cumulative list.
int64_t longest(const std::vector<int64_t>& cumulative) {
  int64_t most = 0;
  for (size_t n = 1; n < cumulative.size(); ++n) most = std::max(most, cumulative[n] - cumulative[n - 1]);
  return most;
}

}  // namespace

Expected<Case> parse_case(Text line) {
  Case c;
  c.text = line;
  Problem& p = c.problem;
  p.batch = 1;
  p.heads_q = 1;
  p.heads_kv = p.seqlen_kv = p.head_dim_v = -1;
  p.seqlen_q = p.total_q = p.total_kv = -1;
  p.head_dim = 16;
  p.wants = 0;
  c.dtypes = {DType::f32, DType::bf16, DType::f16};
  for (Text word : split(line, ' ')) {
    const size_t equals = word.find('=');
    if (equals == Text::npos) return wrong("no '=' in \"" + std::string(word) + "\"", line);
    if (!read_key(word.substr(0, equals), word.substr(equals + 1), &c)) {
      return wrong("unknown key or bad value \"" + std::string(word) + "\"", line);
    }
  }
  if (p.heads_kv < 0) p.heads_kv = p.heads_q;
  if (p.head_dim_v < 0) p.head_dim_v = p.head_dim;
  p.packed_q = c.cu_seqlens_q.empty() ? 0 : 1;
  p.packed_kv = c.cu_seqlens_kv.empty() ? 0 : 1;
  if (p.packed_q != 0) p.batch = static_cast<int64_t>(c.cu_seqlens_q.size()) - 1;
  if (p.packed_kv != 0) p.batch = static_cast<int64_t>(c.cu_seqlens_kv.size()) - 1;
  if (p.seqlen_q < 0) p.seqlen_q = p.packed_q != 0 ? longest(c.cu_seqlens_q) : 16;
  if (p.seqlen_kv < 0) p.seqlen_kv = p.packed_kv != 0 ? longest(c.cu_seqlens_kv) : p.seqlen_q;
  if (p.total_q < 0) p.total_q = p.packed_q != 0 ? c.cu_seqlens_q.back() : 0;
  if (p.total_kv < 0) p.total_kv = p.packed_kv != 0 ? c.cu_seqlens_kv.back() : 0;
  if (c.name.empty()) return wrong("no name", line);
  if (p.page_size > 0) {
    p.max_pages = (p.seqlen_kv + p.page_size - 1) / p.page_size;
    p.num_pages = p.batch * p.max_pages + 2;
  }
  for (const int64_t slot : c.cache_batch_idx) p.cache_slots = std::max(p.cache_slots, slot + 2);
  if (p.page_size > 0 || !c.cache_batch_idx.empty() || c.dtype_kv != DType::none) c.backward = false;
  for (const auto* list : {&c.q_lengths, &c.kv_lengths, &c.kv_starts, &c.q_offset, &c.cache_batch_idx}) {
    if (!one_each(*list, p.batch)) return wrong("a list needs one number a sequence", line);
  }
  if (p.packed_q + p.packed_kv == 2 && c.cu_seqlens_q.size() != c.cu_seqlens_kv.size()) {
    return wrong("cu_seqlens_q and cu_seqlens_kv differ in length", line);
  }
  return c;
}

Expected<std::vector<Case>> parse_cases(Text text) {
  std::vector<Case> cases;
  for (Text line : split(text, '\n')) {
    line = line.substr(0, line.find('#'));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    if (line.empty()) continue;
    auto parsed = parse_case(line);
    if (!parsed) return parsed.status();
    cases.push_back(std::move(*parsed));
  }
  return cases;
}

}  // namespace tilewise
