// Between rows of tensors and tiles with queries in the lanes.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// to[c][r] = from[r][c] * factor, 4 x 4.
HWY_INLINE void Transpose4(const float* HWY_RESTRICT from, int64_t from_stride, float* HWY_RESTRICT to,
                           int64_t to_stride, float factor) {
  const hn::FixedTag<float, 4> d;
  const auto times = hn::Set(d, factor);
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_stride);
  const auto r2 = hn::LoadU(d, from + 2 * from_stride), r3 = hn::LoadU(d, from + 3 * from_stride);
  const auto low02 = hn::InterleaveLower(d, r0, r2), high02 = hn::InterleaveUpper(d, r0, r2);
  const auto low13 = hn::InterleaveLower(d, r1, r3), high13 = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::Mul(times, hn::InterleaveLower(d, low02, low13)), d, to);
  hn::StoreU(hn::Mul(times, hn::InterleaveUpper(d, low02, low13)), d, to + to_stride);
  hn::StoreU(hn::Mul(times, hn::InterleaveLower(d, high02, high13)), d, to + 2 * to_stride);
  hn::StoreU(hn::Mul(times, hn::InterleaveUpper(d, high02, high13)), d, to + 3 * to_stride);
}
#endif

// to[c][r] = from[r][c] * factor. Any strides; neither side needs alignment. The outer loop runs over the
// rows of `from`, or, kRowsOfTo, of `to`: the side whose rows are far apart.
template <bool kRowsOfTo>
HWY_INLINE void Transpose(const float* HWY_RESTRICT from, int64_t from_stride, int rows, int columns,
                          float* HWY_RESTRICT to, int64_t to_stride, float factor) {
  const int outer = kRowsOfTo ? columns : rows, inner = kRowsOfTo ? rows : columns;
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 <= outer; i += 4) {
    int j = 0;
    for (; j + 4 <= inner; j += 4) {
      const int r = kRowsOfTo ? j : i, c = kRowsOfTo ? i : j;
      Transpose4(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride, factor);
    }
    for (; j < inner; ++j) {
      for (int x = i; x < i + 4; ++x) {
        const int r = kRowsOfTo ? j : x, c = kRowsOfTo ? x : j;
        to[c * to_stride + r] = from[r * from_stride + c] * factor;
      }
    }
  }
#endif
  for (; i < outer; ++i) {
    for (int j = 0; j < inner; ++j) {
      const int r = kRowsOfTo ? j : i, c = kRowsOfTo ? i : j;
      to[c * to_stride + r] = from[r * from_stride + c] * factor;
    }
  }
}

// One row of an output: values * factor, or zeros.
inline void StoreRow(const RowTensor& t, int64_t at, const float* HWY_RESTRICT values, int64_t n,
                     float factor, bool zero) {
  if (!t.data) return;
  if (t.dtype == DType::f32) {
    float* to = static_cast<float*>(t.data) + at;
    for (int64_t c = 0; c < n; ++c) to[c] = zero ? 0.0f : values[c] * factor;
    return;
  }
  auto* to = static_cast<uint16_t*>(t.data) + at;
  if (zero) {
    std::memset(to, 0, static_cast<size_t>(n) * sizeof(uint16_t));
  } else if (t.dtype == DType::bf16) {
    for (int64_t c = 0; c < n; ++c) to[c] = bf16_of_float(values[c] * factor);
  } else {
    for (int64_t c = 0; c < n; ++c) to[c] = f16_of_float(values[c] * factor);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
