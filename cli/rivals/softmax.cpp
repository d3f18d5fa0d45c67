#include "cli/rivals/softmax.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "tilewise/c.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cli/rivals/softmax.cpp"
#if defined(__aarch64__)
#define HWY_COMPILE_ONLY_STATIC
#endif
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tilewise::cli::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;

// 2^x for x <= 0, 1e-7 relative; 0 below 2^-126.
HWY_INLINE Vec exp2_of(Tag tag, Vec x) {
  const hn::RebindToSigned<Tag> ints;
  const Vec whole = hn::Round(hn::Max(x, hn::Set(tag, -127.0f)));
  const Vec f = hn::Sub(hn::Max(x, hn::Set(tag, -127.0f)), whole);
  Vec y = hn::Set(tag, 0.001326697f);
  y = hn::MulAdd(y, f, hn::Set(tag, 0.0096754597f));
  y = hn::MulAdd(y, f, hn::Set(tag, 0.055507426f));
  y = hn::MulAdd(y, f, hn::Set(tag, 0.24022122f));
  y = hn::MulAdd(y, f, hn::Set(tag, 0.69314695f));
  y = hn::MulAdd(y, f, hn::Set(tag, 1.0000001f));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(ints, whole), hn::Set(ints, 127)));
  return hn::Mul(y, hn::BitCast(tag, power));  // exponent 0 is the number 0
}

float exponentials(float* x, int64_t lo, int64_t hi, int64_t count) {
  if (hi <= lo) {
    std::memset(x, 0, static_cast<size_t>(count) * sizeof(float));
    return 0;
  }
  const Tag tag;
  const auto lanes = static_cast<int64_t>(hn::Lanes(tag));
  Vec top0 = hn::Set(tag, x[lo]), top1 = top0;
  int64_t i = lo;
  for (; i + 2 * lanes <= hi; i += 2 * lanes) {
    top0 = hn::Max(top0, hn::LoadU(tag, x + i));
    top1 = hn::Max(top1, hn::LoadU(tag, x + i + lanes));
  }
  float top = hn::GetLane(hn::MaxOfLanes(tag, hn::Max(top0, top1)));
  for (; i < hi; ++i) top = std::max(top, x[i]);

  constexpr float kLog2E = 1.44269504f;
  const Vec slope = hn::Set(tag, kLog2E), shift = hn::Set(tag, -top * kLog2E);
  Vec sum0 = hn::Zero(tag), sum1 = sum0;
  for (i = lo; i + 2 * lanes <= hi; i += 2 * lanes) {
    const Vec y0 = exp2_of(tag, hn::MulAdd(hn::LoadU(tag, x + i), slope, shift));
    const Vec y1 = exp2_of(tag, hn::MulAdd(hn::LoadU(tag, x + i + lanes), slope, shift));
    hn::StoreU(y0, tag, x + i);
    hn::StoreU(y1, tag, x + i + lanes);
    sum0 = hn::Add(sum0, y0), sum1 = hn::Add(sum1, y1);
  }
  for (; i < hi; i += lanes) {
    const auto mask = hn::FirstN(tag, static_cast<size_t>(hi - i));
    const Vec y =
        hn::IfThenElseZero(mask, exp2_of(tag, hn::MulAdd(hn::MaskedLoad(mask, tag, x + i), slope, shift)));
    hn::BlendedStore(y, mask, tag, x + i);
    sum0 = hn::Add(sum0, y);
  }
  std::memset(x, 0, static_cast<size_t>(lo) * sizeof(float));
  std::memset(x + hi, 0, static_cast<size_t>(count - hi) * sizeof(float));
  return hn::GetLane(hn::SumOfLanes(tag, hn::Add(sum0, sum1)));
}

void weights(float* x, float lse, int64_t lo, int64_t hi, int64_t count) {
  const Tag tag;
  const auto lanes = static_cast<int64_t>(hn::Lanes(tag));
  hi = std::max(lo, hi);
  constexpr float kLog2E = 1.44269504f;
  const Vec slope = hn::Set(tag, kLog2E), shift = hn::Set(tag, -lse * kLog2E);
  int64_t i = lo;
  for (; i + lanes <= hi; i += lanes)
    hn::StoreU(exp2_of(tag, hn::MulAdd(hn::LoadU(tag, x + i), slope, shift)), tag, x + i);
  if (i < hi) {
    const auto mask = hn::FirstN(tag, static_cast<size_t>(hi - i));
    const Vec y = exp2_of(tag, hn::MulAdd(hn::MaskedLoad(mask, tag, x + i), slope, shift));
    hn::BlendedStore(y, mask, tag, x + i);
  }
  std::memset(x, 0, static_cast<size_t>(lo) * sizeof(float));
  std::memset(x + hi, 0, static_cast<size_t>(count - hi) * sizeof(float));
}

void scale(float* x, int64_t count, float factor) {
  const Tag tag;
  const auto lanes = static_cast<int64_t>(hn::Lanes(tag));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::Mul(hn::LoadU(tag, x + i), hn::Set(tag, factor)), tag, x + i);
  for (; i < count; ++i) x[i] *= factor;
}

float dot(const float* a, const float* b, int64_t count) {
  const Tag tag;
  const auto lanes = static_cast<int64_t>(hn::Lanes(tag));
  Vec sum = hn::Zero(tag);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) sum = hn::MulAdd(hn::LoadU(tag, a + i), hn::LoadU(tag, b + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(tag, sum));
  for (; i < count; ++i) total += a[i] * b[i];
  return total;
}

void score_gradient(float* dp, const float* p, float delta, int64_t count) {
  const Tag tag;
  const auto lanes = static_cast<int64_t>(hn::Lanes(tag));
  const Vec d = hn::Set(tag, delta);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Vec ds = hn::Mul(hn::LoadU(tag, p + i), hn::Sub(hn::LoadU(tag, dp + i), d));
    hn::StoreU(ds, tag, dp + i);
  }
  for (; i < count; ++i) dp[i] = p[i] * (dp[i] - delta);
}

SoftmaxSteps steps() { return {&exponentials, &weights, &scale, &dot, &score_gradient}; }

}  // namespace tilewise::cli::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewise::cli {

SoftmaxSteps softmax_steps([[maybe_unused]] uint64_t isa) {
#if HWY_TARGETS & HWY_AVX3
  if (isa & TILEWISE_ISA_AVX512) return N_AVX3::steps();
#endif
#if HWY_TARGETS & HWY_AVX2
  if (isa & TILEWISE_ISA_AVX2) return N_AVX2::steps();
#endif
  return HWY_STATIC_DISPATCH(steps)();
}

}  // namespace tilewise::cli
#endif  // HWY_ONCE
