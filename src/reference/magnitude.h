// Magnitude: a number that carries, beside its value, what the same formula would give with every term
// replaced by its magnitude. The formula run in this arithmetic yields A of the tolerance rule.
//
// A weight exp(score - lse) is no sum, so by the letter its magnitude is itself. But its score is a sum, and
// what is rounded off there reaches the result, to first order, through the weight. The functions at the end
// add that: without them A would be blind to large scores, and a short head, where the naive run may be
// lucky, would refuse honest kernels.
#ifndef TILEWISE_REFERENCE_MAGNITUDE_H_
#define TILEWISE_REFERENCE_MAGNITUDE_H_

#include <cmath>
#include <vector>

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
  // The softcap passes on what the sum before it may be off by, as far as it is not flat.
  friend Magnitude tanh(Magnitude x) {
    const double t = std::tanh(x.value);
    return {t, std::fabs(t) + (1.0 - t * t) * x.terms};
  }
};

// A score is rounded after each of its additions, by a share of the partial sum: `squares` collects those,
// and what they leave together is about the root of their sum. It exceeds the terms where large terms come
// first.
template <typename Real>
void note_partial_sum(Real, double*) {}
inline void note_partial_sum(Magnitude partial, double* squares) {
  *squares += partial.value * partial.value;
}

template <typename Real>
Real with_partial_sums(Real dot, double) {
  return dot;
}
inline Magnitude with_partial_sums(Magnitude dot, double squares) {
  return {dot.value, std::fmax(dot.terms, std::sqrt(squares))};
}

// x is proportional to exp(score - lse): a change of the score changes it by as large a share.
template <typename Real>
Real through_score(Real x, Real, double) {
  return x;
}
inline Magnitude through_score(Magnitude x, Magnitude score, double lse) {
  return {x.value, x.terms + std::fabs(x.value) * (score.terms + std::fabs(lse))};
}

// top + log(sum of weights): moves with the scores one to one, by their weights.
template <typename Real>
Real log_sum(Real top, Real sum, const std::vector<Real>&, const std::vector<Real>&) {
  return top + std::log(sum);
}
inline Magnitude log_sum(Magnitude top, Magnitude sum, const std::vector<Magnitude>& scores,
                         const std::vector<Magnitude>& weights) {
  const double lse = top.value + std::log(sum.value);
  Magnitude result{lse, std::fabs(lse) + 1.0};
  for (size_t n = 0; n < scores.size(); ++n) {
    result.terms += scores[n].terms * weights[n].value / sum.value;
  }
  return result;
}

// What score n adds to o's magnitude: o moves by weight * (v - o) when it changes. Where weights are rounded
// before their product with v, they lose there what the sum keeps, so that the two need not move together.
template <typename Real>
void add_score_terms(Real, Real, const Real*, bool, std::vector<Real>*) {}
inline void add_score_terms(Magnitude score, Magnitude weight, const Magnitude* v, bool rounded,
                            std::vector<Magnitude>* o) {
  for (size_t d = 0; d < o->size(); ++d) {
    const double with_sum = std::fabs(v[d].value - (*o)[d].value), alone = std::fabs(v[d].value);
    (*o)[d].terms += weight.value * (rounded ? std::fmax(with_sum, alone) : with_sum) * score.terms;
  }
}

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_MAGNITUDE_H_
