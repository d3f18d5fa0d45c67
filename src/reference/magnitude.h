// Magnitude: a number that carries, beside its value, what the same formula would give with every term
// replaced by its magnitude. The formula run in this arithmetic yields A of the tolerance rule.
//
// The magnitude of a weight is the weight: exp and the softmax quotient are not sums, so nothing cancels in
// them. What rounding in a score does to a weight is measured by the naive run, not by A. Only the logarithm
// looks through to the scores: lse = top + log(sum) moves with them one to one, so its magnitude is the
// weighted sum of theirs, plus one for the sum itself and its own value.
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
  friend Magnitude exp(Magnitude x) { return {std::exp(x.value)}; }
  friend Magnitude tanh(Magnitude x) { return {std::tanh(x.value)}; }
};

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_MAGNITUDE_H_
