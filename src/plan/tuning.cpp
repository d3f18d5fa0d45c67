#include "plan/tuning.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include "core/text.h"

namespace tilewise {
namespace {

constexpr const char* kClassNames[] = {"full", "band", "general"};

std::string_view strip(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!(line = strip(line)).empty()) {
    size_t end = 0;
    while (end < line.size() && line[end] != ' ' && line[end] != '\t') ++end;
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
  return words;
}

// "kv4096" with prefix "kv" gives 4096; leaves what follows the digits in `rest`.
bool take_number(std::string_view& rest, std::string_view prefix, int64_t* value) {
  if (!rest.starts_with(prefix)) return false;
  rest.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), *value);
  if (error != std::errc() || *value < 0) return false;
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  return true;
}

bool whole_number(std::string_view word, std::string_view prefix, int64_t* value) {
  return take_number(word, prefix, value) && word.empty();
}

bool parse_dims(std::string_view word, TuningKey* key) {
  if (!take_number(word, "d", &key->head_dim)) return false;
  key->head_dim_v = key->head_dim;
  return word.empty() || whole_number(word, "v", &key->head_dim_v);
}

bool parse_line(std::string_view text, TuningLine* line) {
  const auto words = words_of(text);
  if (words.size() != 10 || words[7] != "=") return false;
  TuningKey& key = line->key;
  if (words[0] != "forward" && words[0] != "backward") return false;
  key.direction = words[0] == "forward" ? Direction::forward : Direction::backward;
  bool known = false;
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (words[1] == name_of(dtype)) {
      key.dtype = dtype;
      known = true;
    }
  }
  if (!known || !parse_dims(words[2], &key) || !whole_number(words[3], "q", &key.seqlen_q) ||
      !whole_number(words[4], "kv", &key.seqlen_kv) || !whole_number(words[5], "gqa", &key.group) ||
      key.group < 1)
    return false;
  known = false;
  for (int i = 0; i < 3; ++i) {
    if (words[6] == kClassNames[i]) {
      key.score = static_cast<ScoreClass>(i);
      known = true;
    }
  }
  if (!known) return false;
  line->kernel = words[8];
  std::string_view time = words[9];
  if (!time.ends_with("us")) return false;
  time.remove_suffix(2);
  const auto [end, error] = std::from_chars(time.data(), time.data() + time.size(), line->microseconds);
  return error == std::errc() && end == time.data() + time.size() && std::isfinite(line->microseconds) &&
         line->microseconds >= 0;
}

double log2_ratio(int64_t a, int64_t b) {
  return std::fabs(
      std::log2(static_cast<double>(std::max<int64_t>(a, 1)) / static_cast<double>(std::max<int64_t>(b, 1))));
}

// Negative = not near.
double distance(const TuningKey& a, const TuningKey& b) {
  if (a.direction != b.direction || a.dtype != b.dtype || a.head_dim != b.head_dim ||
      a.head_dim_v != b.head_dim_v || a.score != b.score)
    return -1;
  const double q = log2_ratio(a.seqlen_q, b.seqlen_q), kv = log2_ratio(a.seqlen_kv, b.seqlen_kv),
               gqa = log2_ratio(a.group, b.group);
  return q <= 1 && kv <= 1 && gqa <= 1 ? q + kv + gqa : -1;
}

}  // namespace

std::vector<int> Tuning::nearest(const TuningKey& key) const {
  std::vector<std::tuple<double, double, int>> found;
  for (size_t i = 0; i < lines.size(); ++i) {
    const double d = distance(lines[i].key, key);
    if (d >= 0) found.emplace_back(d, lines[i].microseconds, static_cast<int>(i));
  }
  std::sort(found.begin(), found.end());
  std::vector<int> order;
  for (const auto& entry : found) order.push_back(std::get<2>(entry));
  return order;
}

std::string to_string(const TuningKey& key) {
  std::string dims = cat("d", key.head_dim);
  if (key.head_dim_v != key.head_dim) dims += cat("v", key.head_dim_v);
  return cat(key.direction == Direction::forward ? "forward " : "backward ", name_of(key.dtype), " ", dims,
             " q", key.seqlen_q, " kv", key.seqlen_kv, " gqa", key.group, " ",
             kClassNames[static_cast<int>(key.score)]);
}

std::string Tuning::to_string() const {
  auto order = [](const TuningLine& line) {
    const TuningKey& k = line.key;
    return std::make_tuple(k.direction, k.dtype, k.head_dim, k.head_dim_v, k.score, k.group, k.seqlen_q,
                           k.seqlen_kv, line.microseconds);
  };
  std::vector<TuningLine> sorted = lines;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const TuningLine& a, const TuningLine& b) { return order(a) < order(b); });
  std::string text;
  if (!device.empty()) text += cat("device: ", device, "\n");
  if (!library.empty()) text += cat("library: ", library, "\n");
  for (const TuningLine& line : sorted) {
    text += cat(tilewise::to_string(line.key), " = ", line.kernel, " ", number_text(line.microseconds, 10),
                "us\n");
  }
  return text;
}

TuningKey tuning_key(const tilewise_problem& p) {
  constexpr uint32_t kGeneral =
      TILEWISE_HAS_BIAS | TILEWISE_HAS_MASK | TILEWISE_HAS_SEGMENT_IDS | TILEWISE_HAS_KV_RANGES;
  TuningKey key;
  key.direction = static_cast<Direction>(p.direction);
  key.dtype = static_cast<DType>(p.dtype_q);
  key.head_dim = p.head_dim;
  key.head_dim_v = p.head_dim_v;
  key.seqlen_q = p.seqlen_q;
  key.seqlen_kv = p.seqlen_kv;
  key.group = p.heads_kv > 0 ? p.heads_q / p.heads_kv : 1;
  const bool band = p.causal || p.window_left >= 0 || p.window_right >= 0;
  key.score = (p.features & kGeneral) || p.dropout_p > 0.0f ? ScoreClass::general
              : band                                        ? ScoreClass::band
                                                            : ScoreClass::full;
  return key;
}

Expected<Tuning> parse_tuning(std::string_view text) {
  Tuning tuning;
  int number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = strip(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.empty() || line.front() == '#') continue;
    if (line.starts_with("device:")) {
      tuning.device = strip(line.substr(7));
    } else if (line.starts_with("library:")) {
      tuning.library = strip(line.substr(8));
    } else {
      TuningLine parsed;
      if (!parse_line(line, &parsed)) {
        return Status(
            Code::invalid,
            cat("tuning line ", number, " is \"", line.substr(0, 200),
                "\"; accepted: \"forward bf16 d128 q4096 kv4096 gqa4 full|band|general = KERNEL 812us\", "
                "\"device: NAME\", \"library: VERSION\" or a # comment"));
      }
      tuning.lines.push_back(std::move(parsed));
    }
  }
  return tuning;
}

}  // namespace tilewise
