// 2^t to fp32 accuracy: relative error at most 1.6e-7 (AVX-512) or 1.8e-7 (others) over [-126, 0].
//
// t = n + x with n whole, so 2^t = 2^n p(x); p is the polynomial of degree 5 with p(0) = 1 and the least
// maximum relative error (8e-8 and 9e-8 before rounding) on an interval of length 1; degree 4 would
// be 2.6e-6. p(0) = 1, so that 2^0 is 1: a lane whose maximum did not rise is scaled by exactly 1, and its
// bits do not depend on its neighbours. Below 2^-126 the result is exactly 0, never denormal; NaN stays NaN;
// -inf gives 0. AVX-512: 8 operations; others: 12. One of these stands beside 2 * head_dim multiply-adds.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

#if HWY_ARCH_X86 && HWY_CAP_GE512
HWY_INLINE V Exp2(V t) {
  const D d;
  const V x{
      _mm512_reduce_ps(t.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // t - floor(t); 0 for infinities
  V p = hn::MulAdd(hn::Set(d, 0.001867130515f), x, hn::Set(d, 0.009017029777f));
  p = hn::MulAdd(p, x, hn::Set(d, 0.05579991266f));
  p = hn::MulAdd(p, x, hn::Set(d, 0.2401644735f));
  p = hn::MulAdd(p, x, hn::Set(d, 0.6931512952f));
  p = hn::MulAdd(p, x, hn::Set(d, 1.0f));
  const __mmask16 normal = _mm512_cmp_ps_mask(t.raw, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return V{_mm512_maskz_scalef_ps(normal, p.raw, t.raw)};  // p * 2^floor(t)
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
