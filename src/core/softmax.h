// Online softmax in scalars: the running state of a row, and the merge of two parts. SIMD and CUDA kernels
// keep the same state in lanes and registers; this is the definition they follow, and what merge() and the
// combine steps run.
#ifndef TILEWISE_CORE_SOFTMAX_H_
#define TILEWISE_CORE_SOFTMAX_H_

#include <cmath>
#include <limits>

#include "core/hd.h"

namespace tilewise {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;
constexpr double kLn2Double = 0.693147180559945309417232;

// Weights that scale two normalised outputs when their key sets are united, and the united lse (natural log).
struct MergeWeights {
  float a = 0.0f, b = 0.0f, lse = kNegativeInfinity;
};

// -inf is the identity, on either side; NaN spreads.
TILEWISE_HD inline MergeWeights merge_weights(float lse_a, float lse_b) {
  if (lse_b == kNegativeInfinity) return {1.0f, 0.0f, lse_a};
  if (lse_a == kNegativeInfinity) return {0.0f, 1.0f, lse_b};
  const float top = lse_a > lse_b ? lse_a : lse_b;
  const float wa = std::exp(lse_a - top), wb = std::exp(lse_b - top);
  const float sum = wa + wb;
  return {wa / sum, wb / sum, top + std::log(sum)};
}

// How a row ends: its lse, and what its O is multiplied by, 0 where O is 0.
struct RowEnd {
  float factor = 0.0f, lse = kNegativeInfinity;
};

// `keys` is the lse of the row's keys, whose weights add up to `sum`; `sink` -inf where there is none. In
// double: a row's sink may be far from its scores.
TILEWISE_HD inline RowEnd join_sink(double keys, float sum, float sink) {
  if (sink == kNegativeInfinity) return {1.0f / sum, static_cast<float>(keys)};
  const double larger = keys > static_cast<double>(sink) ? keys : static_cast<double>(sink);
  const double all =
      larger + std::log(std::exp(keys - larger) + std::exp(static_cast<double>(sink) - larger));
  return {1.0f / sum * static_cast<float>(std::exp(keys - all)), static_cast<float>(all)};
}

// True where no key weighs anything. A row whose only scores are NaN has no maximum either, but its sum is
// NaN.
TILEWISE_HD inline bool saw_nothing(float top, float sum) { return top == kNegativeInfinity && sum == 0.0f; }

// `top` is the running maximum in natural units, `sum` that of e^(score - top).
TILEWISE_HD inline RowEnd finish_row(float top, float sum, float sink) {
  if (saw_nothing(top, sum)) return {0.0f, sink};
  return join_sink(static_cast<double>(top) + static_cast<double>(std::log(sum)), sum, sink);
}

// What a seen value is multiplied by where a row is taken key by key: a weight that underflowed was no zero,
// its product with an infinity is one.
TILEWISE_HD inline float seen_weight(float weight, float value) {
  return weight == 0.0f && std::isinf(value) ? 1.0f : weight;
}

}  // namespace tilewise
#endif  // TILEWISE_CORE_SOFTMAX_H_
