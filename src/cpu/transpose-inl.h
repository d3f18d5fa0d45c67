// Between rows of tensors and tiles with queries in the lanes.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// to[c][r] = from[r][c] * factor, by 4 x 4 blocks. Any strides; neither side needs alignment.
inline void Transpose(const float* HWY_RESTRICT from, int64_t from_stride, int rows, int columns,
                      float* HWY_RESTRICT to, int64_t to_stride, float factor) {
  int c = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const auto times = hn::Set(d, factor);
  for (; c + 4 <= columns; c += 4) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) {
      const float* at = from + r * from_stride + c;
      const auto r0 = hn::LoadU(d, at), r1 = hn::LoadU(d, at + from_stride);
      const auto r2 = hn::LoadU(d, at + 2 * from_stride), r3 = hn::LoadU(d, at + 3 * from_stride);
      const auto low02 = hn::InterleaveLower(d, r0, r2), high02 = hn::InterleaveUpper(d, r0, r2);
      const auto low13 = hn::InterleaveLower(d, r1, r3), high13 = hn::InterleaveUpper(d, r1, r3);
      float* out = to + c * to_stride + r;
      hn::StoreU(hn::Mul(times, hn::InterleaveLower(d, low02, low13)), d, out);
      hn::StoreU(hn::Mul(times, hn::InterleaveUpper(d, low02, low13)), d, out + to_stride);
      hn::StoreU(hn::Mul(times, hn::InterleaveLower(d, high02, high13)), d, out + 2 * to_stride);
      hn::StoreU(hn::Mul(times, hn::InterleaveUpper(d, high02, high13)), d, out + 3 * to_stride);
    }
    for (; r < rows; ++r)
      for (int x = c; x < c + 4; ++x) to[x * to_stride + r] = from[r * from_stride + x] * factor;
  }
#endif
  for (; c < columns; ++c)
    for (int r = 0; r < rows; ++r) to[c * to_stride + r] = from[r * from_stride + c] * factor;
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
