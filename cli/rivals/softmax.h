// The middle step of three-step attention, at the speed of the machine's vectors: what an honest rival needs.
#ifndef TILEWISE_CLI_RIVALS_SOFTMAX_H_
#define TILEWISE_CLI_RIVALS_SOFTMAX_H_

#include <cstdint>

namespace tilewise::cli {

struct SoftmaxSteps {
  // x[lo, hi) becomes exp(x - max); everything else in [0, count) becomes 0. Returns the sum (0 where hi <=
  // lo).
  float (*exponentials)(float* x, int64_t lo, int64_t hi, int64_t count);
  // The same from the row's log-sum-exp: exp(x - lse), which needs no maximum, no sum and no scaling.
  void (*weights)(float* x, float lse, int64_t lo, int64_t hi, int64_t count);
  void (*scale)(float* x, int64_t count, float factor);
  float (*dot)(const float* a, const float* b, int64_t count);
  // dp becomes p * (dp - delta).
  void (*score_gradient)(float* dp, const float* p, float delta, int64_t count);
};

// For the widest of the TILEWISE_ISA bits.
SoftmaxSteps softmax_steps(uint64_t isa);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_RIVALS_SOFTMAX_H_
