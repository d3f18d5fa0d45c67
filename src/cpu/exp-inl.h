// 2^t to fp32 accuracy: relative error at most 1.65e-7 (AVX-512) or 1.8e-7 (others) over [-126, 0].
//
// t = n + x with n whole and 2^t = 2^n p(x), where p is the polynomial of degree 5 with p(0) = 1 and the
// least maximum relative error (9e-8 before rounding) on an interval of length 1; degree 4 would be 2.6e-6.
// AVX-512 steps by 1/32: t = n + i/32 + x, a table that two registers hold has 2^(i/32), and degree 2 is left
// for x (5e-8). Multiply-adds and comparisons share their units with the products beside which this stands,
// other operations do not on every processor: 4 of 10 here, 6 of 8 by degree 5.
//
// 2^0 is 1: a lane whose maximum did not rise is scaled by exactly 1, and its bits do not depend on its
// neighbours. Below 2^-126 the result is exactly 0, never denormal; NaN stays NaN; -inf gives 0.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

#if HWY_ARCH_X86 && HWY_CAP_GE512
// Bits of 2^(i/32) less i << 18: with the bits of (32 n + i) << 18 added, those of 2^(n + i/32).
alignas(64) constexpr int32_t kPowers[32] = {
    // clang-format off
    0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3, 0x3f78f4f0,
    0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6,
    0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be, 0x3f76248c, 0x3f76a81e,
    0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3,
    // clang-format on
};

HWY_INLINE V Exp2(V t) {
  const __m512 magic = _mm512_set1_ps(393216.0f);  // 1.5 * 2^18: the sum's low bits are round(32 t)
  const __m512 sum = _mm512_add_ps(t.raw, magic);
  const __m512 x = _mm512_sub_ps(t.raw, _mm512_sub_ps(sum, magic));
  const __m512i steps = _mm512_castps_si512(sum);
  const __m512i power =
      _mm512_permutex2var_epi32(_mm512_load_si512(kPowers), steps, _mm512_load_si512(kPowers + 16));
  const __m512 whole = _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_slli_epi32(steps, 18)));
  const __m512 rest =
      _mm512_mul_ps(x, _mm512_fmadd_ps(x, _mm512_set1_ps(0.2402268177f), _mm512_set1_ps(0.6931573435f)));
  const __mmask16 normal = _mm512_cmp_ps_mask(t.raw, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return V{_mm512_maskz_fmadd_ps(normal, whole, rest, whole)};
}
#else
HWY_INLINE V Exp2(V t) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);  // 1.5 * 2^23: the sum's low bits are round(t) + 127
  const V sum = hn::Add(t, magic);
  const V x = hn::Sub(t, hn::Sub(sum, magic));
  V p = hn::MulAdd(hn::Set(d, 0.001326472731f), x, hn::Set(d, 0.009671512991f));
  p = hn::MulAdd(p, x, hn::Set(d, 0.05550733581f));
  p = hn::MulAdd(p, x, hn::Set(d, 0.2402224243f));
  p = hn::MulAdd(p, x, hn::Set(d, 0.6931470037f));
  p = hn::MulAdd(p, x, hn::Set(d, 1.0f));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, sum)));
  return hn::IfThenZeroElse(hn::Lt(t, hn::Set(d, -126.0f)), hn::Mul(p, power));
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
