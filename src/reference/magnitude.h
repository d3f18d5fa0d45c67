// Magnitude: a number that carries, beside its value, what the same formula would give with every term
// replaced by its magnitude. The formula run in this arithmetic yields A of the tolerance rule.
//
// exp is not a sum, but it passes on what its argument may be off by: a score, a sum of fp32 products to
// which a bias and -lse are added, is two rounding units of its terms wide, and e^(s (1 + u)) = e^s (1 + s
// u). The allowance is 8 units of A, so the magnitude of exp(x) is e^x (1 + terms(x) / 4): two units of the
// score's terms. Without it the rule hangs on the luck of the naive run where logits are large and rows few
// (docs/decisions/tolerance-of-large-scores.md). The logarithm looks through too: lse = top + log(sum) moves
// with the scores one to one, so its magnitude is the weighted sum of theirs, plus one for the sum itself and
// its own value.
#ifndef TILEWISE_REFERENCE_MAGNITUDE_H_
#define TILEWISE_REFERENCE_MAGNITUDE_H_

#include <cmath>

namespace tilewise {

struct Magnitude {
  double value = 0.0;
  double terms = 0.0;

  Magnitude() = default;
  Magnitude(double v) : value(v), terms(std::fabs(v)) {}
  Magnitude(double v, double t) : value(v), terms(t) {}

  friend Magnitude operator+(Magnitude a, Magnitude b) { return {a.value + b.value, a.terms + b.terms}; }
  friend Magnitude operator-(Magnitude a, Magnitude b) { return {a.value - b.value, a.terms + b.terms}; }
  friend Magnitude operator*(Magnitude a, Magnitude b) { return {a.value * b.value, a.terms * b.terms}; }
  friend Magnitude operator/(Magnitude a, Magnitude b) {
    return {a.value / b.value, a.terms / std::fabs(b.value)};
  }
  Magnitude& operator+=(Magnitude b) { return *this = *this + b; }
  friend Magnitude exp(Magnitude x) {
    // fp32 weights below 2^-126 may be flushed to 0, never slow denormals: 2^-126 is 8 * 2^-24 * 2^-105.
    constexpr double kFlushed = 0x1p-105;
    const double value = std::exp(x.value);
    // Where e^x is 0 its terms may be infinite (a hidden pair).
    return value == 0.0 ? Magnitude(0.0) : Magnitude(value, value * (1.0 + x.terms / 4.0) + kFlushed);
  }
  friend Magnitude tanh(Magnitude x) { return {std::tanh(x.value)}; }
};

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_MAGNITUDE_H_
