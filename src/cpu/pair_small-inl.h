// The scores of the `small` kernels by dots of bf16 pairs, straight from the rows: half the loads and
// products, and no widening. All else of them multiplies fp32, with rows widened where they are loaded.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE void StoreNarrow(V value, DotBf16* HWY_RESTRICT to) {
  __m256i halves;
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(value.raw));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
}

template <>
struct RowDots<DotBf16> {
  static constexpr bool kOwn = true;
  static constexpr int kPairLanes = 2 * kLanes;

  // What is left of `left` numbers, zeros behind them.
  static HWY_INLINE VPair load(const DotBf16* from, int left) {
    if (left >= kPairLanes) return VPair{_mm512_loadu_si512(from)};
    return VPair{_mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }

  // Rows of kPairs vectors that share their keys: they stay in registers.
  template <int kPairs>
  static HWY_NOINLINE void held(const DotBf16* const* q, const DotBf16* k, int64_t k_stride, int n,
                                float* HWY_RESTRICT s, int64_t ld) {
    const D d;
    VPair x[4][kPairs];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kPairs; ++c) x[r][c] = load(q[r] + c * kPairLanes, kPairLanes);
    }
#pragma GCC unroll 2
    for (int j = 0; j < n; ++j, k += k_stride, s += ld) {
      V sum[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) sum[r] = hn::Zero(d);
#pragma GCC unroll 4
      for (int c = 0; c < kPairs; ++c) {
        const VPair y = load(k + c * kPairLanes, kPairLanes);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) Product<Pair>::add(sum[r], x[r][c], y);
      }
      StoreFourSums(sum[0], sum[1], sum[2], sum[3], s);
    }
  }

  template <bool kSameKeys>
  static HWY_NOINLINE void scores(const DotBf16* const* q, const DotBf16* const* k, int64_t k_stride, int dim,
                                  int n, float* HWY_RESTRICT s, int64_t ld) {
    if (kSameKeys && dim == 2 * kPairLanes) return held<2>(q, k[0], k_stride, n, s, ld);
    if (kSameKeys && dim == 4 * kPairLanes) return held<4>(q, k[0], k_stride, n, s, ld);
    const D d;
    for (int j = 0; j < n; ++j, s += ld) {
      V sum[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) sum[r] = hn::Zero(d);
      for (int c = 0; c < dim; c += kPairLanes) {
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r)
          Product<Pair>::add(sum[r], load(q[r] + c, dim - c),
                             load(k[kSameKeys ? 0 : r] + j * k_stride + c, dim - c));
      }
      StoreFourSums(sum[0], sum[1], sum[2], sum[3], s);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
