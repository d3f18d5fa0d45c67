#include "reference/case_values.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>

namespace tilewise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// "random:0.7" -> name "random", numbers {0.7}; "list:1,2" and "list:1:2" alike.
struct Pattern {
  std::string name;
  std::vector<double> numbers;

  explicit Pattern(const std::string& text) {
    size_t at = std::min(text.find(':'), text.size());
    name = text.substr(0, at);
    while (at < text.size()) {
      const size_t next = std::min(text.find_first_of(":,", at + 1), text.size());
      numbers.push_back(std::strtod(text.substr(at + 1, next - at - 1).c_str(), nullptr));
      at = next;
    }
  }
  double number(size_t n, double otherwise) const { return n < numbers.size() ? numbers[n] : otherwise; }
  int64_t whole(size_t n, int64_t otherwise) const {
    return static_cast<int64_t>(number(n, static_cast<double>(otherwise)));
  }
  double listed(int64_t flat) const {
    return numbers.empty() ? 0.0 : numbers[static_cast<size_t>(flat) % numbers.size()];
  }
};

// What logits patterns divide by.
double scale_of(const Case& c) {
  const Problem& p = c.problem;
  if (p.softmax_scale == 0.0f) return 1.0;
  return std::isnan(p.softmax_scale) ? 1.0 / std::sqrt(static_cast<double>(p.head_dim))
                                     : static_cast<double>(p.softmax_scale);
}

double lowest(DType dtype) {
  if (dtype == DType::f16) return -65504.0;
  if (dtype == DType::bf16) return -0x1.fep127;
  return -static_cast<double>(std::numeric_limits<float>::max());
}

constexpr const char* kInputs[] = {"random",        "ones",     "counting",   "powers",  "values",
                                   "heads",         "identity", "constant_k", "logits",  "sentinel",
                                   "half_overflow", "max_half", "zero_dout",  "nan_key", "inf_key",
                                   "inf_score",     "wide",     "channel",    "spans",   "scaled_dout"};
constexpr const char* kMasks[] = {"random", "corner", "band", "keys", "close_row", "list", "open", "closed"};
constexpr const char* kBiases[] = {"random", "neginf", "lowest", "corner", "qk", "list", "minus", "row_list"};

template <size_t N>
bool known(const char* const (&names)[N], const std::string& text) {
  return std::find(std::begin(names), std::end(names), Pattern(text).name) != std::end(names);
}

}  // namespace

uint64_t Random::bits() {
  uint64_t x = (state_ += 0x9e3779b97f4a7c15ull);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

double Random::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

int64_t Random::integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
}

double Random::normal() {
  const double u = 1.0 - uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * uniform());
}

double input_value(const Case& c, const std::string& tensor, int64_t row, int64_t head, int64_t dim,
                   Random& random) {
  const double drawn = random.normal();
  if (c.inputs == "random") return drawn;  // of most cases, element by element: names are not looked at
  const Pattern p(c.inputs);
  const bool is_q = tensor == "q", is_k = tensor == "k", is_v = tensor == "v", is_dout = tensor == "dout";
  if (p.name == "ones") return 1.0;
  if (p.name == "counting" || p.name == "powers" || p.name == "values" || p.name == "heads") {
    if (is_q) return 0.0;
    if (!is_v) return drawn;
    if (p.name == "counting") return static_cast<double>(row);
    if (p.name == "powers") return std::ldexp(1.0, static_cast<int>(row % 24));
    if (p.name == "values") return p.listed(row);
    return p.number(static_cast<size_t>(head), 0.0);
  }
  if (p.name == "identity" && (is_v || is_dout)) return row == dim ? 1.0 : 0.0;
  if (p.name == "constant_k") {
    if (is_k) return 4.0 * static_cast<double>((dim * 7 + head * 3) % 11 - 5);
    return is_q ? 30.0 * drawn : drawn;
  }
  if (p.name == "logits") {  // logits:90:100, one channel carries them
    const double low = p.number(0, 90.0), high = p.number(1, 100.0);
    if (is_q) return dim == 0 ? 8.0 : 0.01 * drawn;
    if (is_k) return dim == 0 ? (low + (high - low) * random.uniform()) / (8.0 * scale_of(c)) : 0.01 * drawn;
  }
  if (p.name == "channel") {  // channel:Q:K0:K1:..., exact logits scale * Q * K[j]
    if (is_q) return dim == 0 ? p.number(0, 1.0) : 0.0;
    if (is_k) {
      return dim == 0
                 ? p.number(1 + static_cast<size_t>(row) % std::max<size_t>(1, p.numbers.size() - 1), 0.0)
                 : 0.0;
    }
  }
  if (p.name == "sentinel") {
    if (is_q) return dim == 0 ? 448.0 : 0.0;
    if (is_k) return dim == 0 ? -1880.0 : 0.0;
  }
  if (p.name == "half_overflow" && (is_q || is_k)) return 300.0;
  if (p.name == "max_half") {
    if (is_q) return dim < 4 ? 576.0 : 0.0;
    if (is_k) return dim < 4 ? (row % 2 == 0 ? 383.0 : 382.0) : 0.0;
  }
  if (p.name == "zero_dout" && is_dout) return 0.0;
  if (p.name == "scaled_dout" && is_dout) return std::ldexp(drawn, static_cast<int>(p.whole(0, 0)));
  if (p.name == "spans" && dim >= 8 && row < p.whole(1, row + 1))
    return std::ldexp(drawn, -static_cast<int>(p.whole(0, 0)));
  if (p.name == "nan_key" && (is_k || is_v) && row == p.whole(0, 0)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (p.name == "inf_score") {
    if (is_q && dim == 0) return 1.0;
    if (is_k && dim == 0 && row == p.whole(0, 0)) return -kInfinity;
    if (is_v && row == p.whole(0, 0) && p.number(1, 0) != 0.0) return kInfinity;
  }
  if (p.name == "inf_key" && is_v && row == p.whole(0, 0)) return kInfinity;
  if (p.name == "wide" && (is_q || is_k)) return drawn * p.number(0, 4.0);
  return drawn;
}

bool mask_value(const std::string& pattern, int64_t row, int64_t key, int64_t flat, Random& random) {
  const Pattern p(pattern);
  if (p.name == "random") return random.chance(p.number(0, 0.7));
  if (p.name == "corner") return row < p.whole(0, 1) && key < p.whole(1, 1);
  if (p.name == "band") return key <= row && key > row - p.whole(0, 1);
  if (p.name == "keys") return key >= p.whole(0, 0) && key < p.whole(1, 0);
  if (p.name == "close_row") return row != p.whole(0, 0);
  if (p.name == "list") return p.listed(flat) != 0.0;
  return p.name == "open";
}

double bias_value(const std::string& pattern, DType dtype, int64_t row, int64_t key, int64_t flat,
                  Random& random) {
  const Pattern p(pattern);
  const double drawn = random.normal();
  if (p.name == "neginf") return random.chance(p.number(0, 0.3)) ? -kInfinity : drawn;
  if (p.name == "lowest") return random.chance(p.number(0, 0.5)) ? lowest(dtype) : 0.0;
  if (p.name == "minus") return random.chance(p.number(0, 0.5)) ? -p.number(1, 1e30) : drawn;
  if (p.name == "corner") return row < p.whole(0, 1) && key < p.whole(1, 1) ? drawn : -kInfinity;
  if (p.name == "qk") return static_cast<double>(row - key) * p.number(0, 1.0);
  if (p.name == "list") return p.listed(flat);
  if (p.name == "row_list") return p.listed(key);
  return drawn;
}

int32_t segment_id(const std::string& pattern, int64_t row, int64_t rows, Random& random) {
  const Pattern p(pattern);
  const int64_t count = std::max<int64_t>(1, p.whole(0, 3));
  if (p.name == "list") return static_cast<int32_t>(p.listed(row));
  if (p.name == "sorted") return static_cast<int32_t>(row * count / std::max<int64_t>(1, rows));
  return static_cast<int32_t>(random.integer(0, count - 1));
}

std::pair<int32_t, int32_t> kv_range(const std::string& pattern, int64_t row, int64_t keys, Random& random) {
  const Pattern p(pattern);
  if (p.name == "list") {
    return {static_cast<int32_t>(p.listed(2 * row)), static_cast<int32_t>(p.listed(2 * row + 1))};
  }
  if (p.name == "prefix") return {0, static_cast<int32_t>(std::max(p.whole(0, 1), row + 1))};
  if (p.name == "images") {
    const int64_t size = std::max<int64_t>(1, p.whole(0, 7));
    return {static_cast<int32_t>(row / size * size), static_cast<int32_t>((row / size + 1) * size)};
  }
  const int64_t first = random.integer(-3, keys);
  return {static_cast<int32_t>(first), static_cast<int32_t>(first + random.integer(-2, keys + 3))};
}

float sink_value(const std::string& pattern, int64_t head, Random& random) {
  const Pattern p(pattern);
  if (p.name == "list") return static_cast<float>(p.listed(head));
  return static_cast<float>(random.normal());
}

std::string unknown_pattern(const Case& c) {
  if (!known(kInputs, c.inputs)) return "inputs=" + c.inputs;
  if (!c.mask_values.empty() && !known(kMasks, c.mask_values)) return "mask values " + c.mask_values;
  if (!c.bias_values.empty() && !known(kBiases, c.bias_values)) return "bias values " + c.bias_values;
  return {};
}

}  // namespace tilewise
