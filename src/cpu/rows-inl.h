// Rows in and out of fp32, and products over any width: what forward and backward share around
// tile_product-inl.h.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// One row of 16-bit or fp32 storage, `n` elements from element `at`.
inline void ConvertRow(float* HWY_RESTRICT to, const RowTensor& t, int64_t at, int64_t n) {
  if (t.dtype == DType::f32) {
    std::memcpy(to, static_cast<const float*>(t.data) + at, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const auto* from = static_cast<const uint16_t*>(t.data) + at;
  const D d;
  int64_t i = 0;
  if (t.dtype == DType::bf16) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> d16;
    for (; i + kLanes <= n; i += kLanes) {
      const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from + i)));
      hn::StoreU(hn::BitCast(d, wide), d, to + i);
    }
    for (; i < n; ++i) to[i] = float_of_bf16(from[i]);
    return;
  }
#if HWY_TARGET != HWY_SCALAR
  const hn::Rebind<hwy::float16_t, D> d16;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from + i))), d,
               to + i);
  }
#endif
  for (; i < n; ++i) to[i] = float_of_f16(from[i]);
}

// True where no element of the row is NaN or infinite.
inline bool AllFinite(const float* HWY_RESTRICT row, int64_t n) {
  const D d;
  V bad = hn::Zero(d);  // x * 0 is 0, or NaN for what is not finite; NaN stays
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) bad = hn::MulAdd(hn::LoadU(d, row + i), hn::Zero(d), bad);
  bool finite = hn::AllTrue(d, hn::Eq(bad, bad));
  for (; i < n; ++i) finite = finite && std::isfinite(row[i]);
  return finite;
}

// to[c][r] = rows[r][c] * scale for r < m (whole vectors), c < n. `pitch` is the caller's own, so indices are
// small.
inline void TransposeRows(float* HWY_RESTRICT to, int m, const float* HWY_RESTRICT rows, int64_t pitch,
                          int64_t n, float scale) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V factor = hn::Set(d, scale);
  const auto step = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(pitch)));
  for (int64_t c = 0; c < n; ++c)
    for (int r = 0; r < m; r += kLanes)
      hn::StoreU(hn::Mul(hn::GatherIndex(d, rows + r * pitch + c, step), factor), d, to + c * m + r);
}

// to[c] = columns[c][0] * scale for c < n; `m` floats from one to the next. Writes whole vectors: to[] is
// padded.
inline void GatherColumn(float* HWY_RESTRICT to, const float* HWY_RESTRICT columns, int m, int64_t n,
                         float scale) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V factor = hn::Set(d, scale);
  const auto step = hn::Mul(hn::Iota(di, 0), hn::Set(di, m));
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes)
    hn::StoreU(hn::Mul(hn::GatherIndex(d, columns + c * m, step), factor), d, to + c);
  for (; c < n; ++c) to[c] = columns[c * m] * scale;
}

// Rows [row0, row0 + n) of one head as fp32: in place for fp32 storage, else converted into `buffer`.
inline const float* RowsAsFloat(const RowTensor& t, int64_t b, int64_t head, int64_t row0, int n, int64_t dim,
                                int64_t pitch, float* buffer, int64_t* stride) {
  const int64_t at = b * t.batch_stride + head * t.head_stride + row0 * t.row_stride;
  if (t.dtype == DType::f32) {
    *stride = t.row_stride;
    return static_cast<const float*>(t.data) + at;
  }
  for (int j = 0; j < n; ++j) ConvertRow(buffer + j * pitch, t, at + j * t.row_stride, dim);
  *stride = pitch;
  return buffer;
}

inline void StoreRow(const RowTensor& t, int64_t at, const float* HWY_RESTRICT values, int64_t n) {
  if (t.dtype == DType::f32) {
    std::memcpy(static_cast<float*>(t.data) + at, values, static_cast<size_t>(n) * sizeof(float));
  } else {
    for (int64_t c = 0; c < n; ++c) store_element(t.data, t.dtype, at + c, values[c]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
