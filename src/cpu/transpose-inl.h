// Between rows of tensors and tiles with queries in the lanes.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// What the columns of `from` are multiplied by: all by one factor, or each by its own.
class ColumnFactors {
 public:
  explicit HWY_INLINE ColumnFactors(float all) : all_(all) {}
  explicit HWY_INLINE ColumnFactors(const float* each) : each_(each) {}
  HWY_INLINE float at(int column) const { return each_ ? each_[column] : all_; }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, int column) const {
    return each_ ? hn::LoadU(d, each_ + column) : hn::Set(d, all_);
  }

 private:
  const float* each_ = nullptr;
  float all_ = 1.0f;
};

#if HWY_TARGET != HWY_SCALAR
// to[c][r] = from[r][c] * times[c], 4 x 4.
template <class Storage>
HWY_INLINE void Transpose4(const Storage* HWY_RESTRICT from, int64_t from_stride, float* HWY_RESTRICT to,
                           int64_t to_stride, hn::Vec<hn::FixedTag<float, 4>> times) {
  const hn::FixedTag<float, 4> d;
  const auto row = [&](int64_t r) HWY_ATTR { return hn::Mul(times, LoadWide(d, from + r * from_stride)); };
  const auto r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
  const auto low02 = hn::InterleaveLower(d, r0, r2), high02 = hn::InterleaveUpper(d, r0, r2);
  const auto low13 = hn::InterleaveLower(d, r1, r3), high13 = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::InterleaveLower(d, low02, low13), d, to);
  hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, to + to_stride);
  hn::StoreU(hn::InterleaveLower(d, high02, high13), d, to + 2 * to_stride);
  hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, to + 3 * to_stride);
}
#endif

#if HWY_ARCH_X86 && HWY_CAP_GE512
// Pairs of floats of the lower or upper halves of x's and y's 128-bit blocks.
HWY_INLINE __m512 LowerPairs(__m512 x, __m512 y) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
}
HWY_INLINE __m512 UpperPairs(__m512 x, __m512 y) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
}

// to[c][r] = from[r][c] * times[c], 16 x 16: every line of `to` is written once, whole. Inlined, its 32 row
// addresses would be kept on the stack and stepped there. kPartial: the last of `rows` stands in for the
// rest. Not kScaled: `times` is not read, and every bit stays, whatever the 32 stand for.
template <bool kPartial, bool kScaled = true, class Storage>
HWY_NOINLINE void Transpose16(const Storage* HWY_RESTRICT from, int64_t from_stride, float* HWY_RESTRICT to,
                              int64_t to_stride, V times, int rows) {
  __m512 a[16], b[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r)
    a[r] = LoadWide(D(), from + (!kPartial || r < rows ? r : rows - 1) * from_stride).raw;
  if constexpr (kScaled) {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) a[r] = _mm512_mul_ps(times.raw, a[r]);
  }
  // Within blocks of 4 columns: first pairs of rows, then 4 rows.
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_ps(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_ps(a[r], a[r + 1]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4) {
    a[r] = LowerPairs(b[r], b[r + 2]);
    a[r + 1] = UpperPairs(b[r], b[r + 2]);
    a[r + 2] = LowerPairs(b[r + 1], b[r + 3]);
    a[r + 3] = UpperPairs(b[r + 1], b[r + 3]);
  }
  // a[4 g + i] holds columns i, 4 + i, 8 + i, 12 + i of rows 4 g .. 4 g + 3: now the blocks.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 even01 = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88),
                 odd01 = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);
    const __m512 even23 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88),
                 odd23 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
    const __m512 columns[4] = {
        _mm512_shuffle_f32x4(even01, even23, 0x88), _mm512_shuffle_f32x4(odd01, odd23, 0x88),
        _mm512_shuffle_f32x4(even01, even23, 0xdd), _mm512_shuffle_f32x4(odd01, odd23, 0xdd)};
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) _mm512_storeu_ps(to + (4 * g + i) * to_stride, columns[g]);
  }
}
#endif

// Rows [r0, r1), columns [c0, c1) of the transpose, one by one. Inlined beside the blocks, its addresses
// would be stepped with them.
template <class Storage>
HWY_NOINLINE void TransposeEach(const Storage* HWY_RESTRICT from, int64_t from_stride, int r0, int r1, int c0,
                                int c1, float* HWY_RESTRICT to, int64_t to_stride,
                                const ColumnFactors& factors) {
  for (int r = r0; r < r1; ++r)
    for (int c = c0; c < c1; ++c) to[c * to_stride + r] = Widened(from[r * from_stride + c]) * factors.at(c);
}

// to[c][r] = from[r][c] * factor of c. Any strides; neither side needs alignment. The outer loop runs over
// the rows of `from`, or, kRowsOfTo, of `to`: the side whose rows are far apart.
template <bool kRowsOfTo, class Storage>
HWY_INLINE void Transpose(const Storage* HWY_RESTRICT from, int64_t from_stride, int rows, int columns,
                          float* HWY_RESTRICT to, int64_t to_stride, const ColumnFactors& factors) {
  const int outer = kRowsOfTo ? columns : rows, inner = kRowsOfTo ? rows : columns;
  const auto each = [&](int i0, int i1, int j0) {
    if (i0 == i1 || j0 == inner) return;
    if (kRowsOfTo)
      TransposeEach(from, from_stride, j0, inner, i0, i1, to, to_stride, factors);
    else
      TransposeEach(from, from_stride, i0, i1, j0, inner, to, to_stride, factors);
  };
  int i = 0;
#if HWY_ARCH_X86 && HWY_CAP_GE512
  for (; i + 16 <= outer; i += 16) {
    int j = 0;
    for (; j + 16 <= inner; j += 16) {
      const int r = kRowsOfTo ? j : i, c = kRowsOfTo ? i : j;
      Transpose16<false>(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride,
                         factors.at(D(), c), 16);
    }
    each(i, i + 16, j);
  }
#endif
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 <= outer; i += 4) {
    int j = 0;
    for (; j + 4 <= inner; j += 4) {
      const int r = kRowsOfTo ? j : i, c = kRowsOfTo ? i : j;
      Transpose4(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride,
                 factors.at(hn::FixedTag<float, 4>(), c));
    }
    each(i, i + 4, j);
  }
#endif
  each(i, outer, 0);
}

// Transpose<false> where rows fill no whole vectors of lanes: the lanes that are left over hold anything.
template <class Storage>
HWY_INLINE void TransposeToLanes(const Storage* HWY_RESTRICT from, int64_t from_stride, int rows, int columns,
                                 float* HWY_RESTRICT to, int64_t to_stride, float factor) {
#if HWY_ARCH_X86 && HWY_CAP_GE512
  const int whole = rows / 16 * 16, blocks = columns / 16 * 16;
  Transpose<false>(from, from_stride, whole, columns, to, to_stride, ColumnFactors(factor));
  if (whole == rows) return;
  from += whole * from_stride;
  for (int c = 0; c < blocks; c += 16)
    Transpose16<true>(from + c, from_stride, to + c * to_stride + whole, to_stride, hn::Set(D(), factor),
                      rows - whole);
  TransposeEach(from, from_stride, 0, rows - whole, blocks, columns, to + whole, to_stride,
                ColumnFactors(factor));
#else
  Transpose<false>(from, from_stride, rows, columns, to, to_stride, ColumnFactors(factor));
#endif
}

// One row of an output: values * factor, or zeros.
inline void StoreRow(const RowTensor& t, int64_t at, const float* HWY_RESTRICT values, int64_t n,
                     float factor, bool zero) {
  if (!t.data) return;
  if (factor == 0.0f && !zero) {  // a sink left nothing: 0, but what is infinite or NaN stays
    for (int64_t c = 0; c < n; ++c)
      store_element(t.data, t.dtype, at + c, seen_weight(factor, values[c]) * values[c]);
    return;
  }
  if (t.dtype == DType::f32) {
    float* to = static_cast<float*>(t.data) + at;
    for (int64_t c = 0; c < n; ++c) to[c] = zero ? 0.0f : values[c] * factor;
    return;
  }
  auto* to = static_cast<uint16_t*>(t.data) + at;
  if (zero)
    std::memset(to, 0, static_cast<size_t>(n) * sizeof(uint16_t));
  else if (t.dtype == DType::bf16)
    NarrowRow(values, n, factor, reinterpret_cast<Bf16*>(to));
  else
    NarrowRow(values, n, factor, reinterpret_cast<F16*>(to));
}

// One row of a gradient: values * factor, added to what stands there where the call accumulates.
inline void StoreGradientRow(const RowTensor& t, int64_t at, const float* HWY_RESTRICT values, int64_t n,
                             float factor, bool accumulate) {
  if (!accumulate) {
    StoreRow(t, at, values, n, factor, false);
    return;
  }
  for (int64_t c = 0; c < n; ++c) {
    const float value = values[c] * factor;
    store_element(t.data, t.dtype, at + c, load_element(t.data, t.dtype, at + c) + value);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
