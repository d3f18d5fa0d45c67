// Vectors of fp32 from and to memory in any storage type: widened exactly, rounded to nearest even back, as
// core/half.h does it for one number. A load that widens costs a product next to nothing, since it takes
// other units than the multiply-adds; a row widened into a buffer costs as much as a row of a small product.
// Included once per instruction set, inside HWY_BEFORE_NAMESPACE.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int kLanes = HWY_LANES(float);  // fixed-width instruction sets only

// Elements of 16 bits.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
// bf16 for the instruction set that multiplies it (pair_small-inl.h). A type of its own: what is made of it
// may not be linked in the place of what is made of Bf16.
struct DotBf16 : Bf16 {};

template <class Storage>
constexpr DType kTypeOf = std::is_base_of_v<Bf16, Storage> ? DType::bf16
                          : std::is_same_v<Storage, F16>   ? DType::f16
                                                           : DType::f32;

HWY_INLINE float Widened(float x) { return x; }
HWY_INLINE float Widened(Bf16 x) { return float_of_bf16(x.bits); }
HWY_INLINE float Widened(F16 x) { return float_of_f16(x.bits); }

template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const float* HWY_RESTRICT from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const Bf16* HWY_RESTRICT from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const auto halves = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, halves)));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const F16* HWY_RESTRICT from) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, Widened(*from));
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#endif
}

HWY_INLINE void StoreNarrow(V value, float* HWY_RESTRICT to) { hn::StoreU(value, D(), to); }
HWY_INLINE void StoreNarrow(V value, Bf16* HWY_RESTRICT to) {
#if HWY_ARCH_X86 && HWY_CAP_GE512
  alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                      23, 25, 27, 29, 31, 1,  3,  5,  7,  9,  11,
                                                      13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const __m512i bits = _mm512_castps_si512(value.raw);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000)),
                  nan = _mm512_cmp_ps_mask(value.raw, value.raw, _CMP_UNORD_Q);
  __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  rounded = _mm512_mask_sub_epi32(rounded, odd, rounded, _mm512_set1_epi32(-1));
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  const __m512i upper = _mm512_permutexvar_epi16(_mm512_load_si512(kUpper), rounded);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(upper));
#else
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto nan = hn::RebindMask(du, hn::IsNaN(value));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, high)), d16, reinterpret_cast<uint16_t*>(to));
#endif
}
HWY_INLINE void StoreNarrow(V value, F16* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  to->bits = f16_of_float(hn::GetLane(value));
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, value), d16, reinterpret_cast<hwy::float16_t*>(to));
#endif
}

// `count` rows of n elements, `stride` elements apart, as fp32 rows of `pitch` that end with zeros.
template <class Storage>
HWY_NOINLINE void WidenRows(const Storage* HWY_RESTRICT from, int64_t stride, int count, int64_t n,
                            float* HWY_RESTRICT to, int64_t pitch) {
  const D d;
  for (int r = 0; r < count; ++r, from += stride, to += pitch) {
    int64_t c = 0;
    for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
      hn::StoreU(LoadWide(d, from + c), d, to + c);
      hn::StoreU(LoadWide(d, from + c + kLanes), d, to + c + kLanes);
      hn::StoreU(LoadWide(d, from + c + 2 * kLanes), d, to + c + 2 * kLanes);
      hn::StoreU(LoadWide(d, from + c + 3 * kLanes), d, to + c + 3 * kLanes);
    }
    for (; c + kLanes <= n; c += kLanes) hn::StoreU(LoadWide(d, from + c), d, to + c);
    if (c == pitch) continue;
    for (; c < n; ++c) to[c] = Widened(from[c]);
    for (; c < pitch; ++c) to[c] = 0.0f;
  }
}

// One row of n elements: values * factor.
template <class Storage>
HWY_INLINE void NarrowRow(const float* HWY_RESTRICT values, int64_t n, float factor,
                          Storage* HWY_RESTRICT to) {
  const D d;
  const V times = hn::Set(d, factor);
  int64_t c = 0;
  for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
    StoreNarrow(hn::Mul(times, hn::LoadU(d, values + c)), to + c);
    StoreNarrow(hn::Mul(times, hn::LoadU(d, values + c + kLanes)), to + c + kLanes);
    StoreNarrow(hn::Mul(times, hn::LoadU(d, values + c + 2 * kLanes)), to + c + 2 * kLanes);
    StoreNarrow(hn::Mul(times, hn::LoadU(d, values + c + 3 * kLanes)), to + c + 3 * kLanes);
  }
  for (; c + kLanes <= n; c += kLanes) StoreNarrow(hn::Mul(times, hn::LoadU(d, values + c)), to + c);
  for (; c < n; ++c) store_element(to, kTypeOf<Storage>, c, values[c] * factor);
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
