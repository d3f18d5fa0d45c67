// Rows in and out of fp32, and products over any width: what forward and backward share around
// tile_product-inl.h.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// One row of any storage, `n` elements from element `at`.
inline void ConvertRow(float* HWY_RESTRICT to, const RowTensor& t, int64_t at, int64_t n) {
  if (t.dtype == DType::f32) {
    std::memcpy(to, static_cast<const float*>(t.data) + at, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  if (is_quantized(t.dtype)) {
    for (int64_t i = 0; i < n; ++i) to[i] = load_element(t.data, t.dtype, at + i);
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

// The same, and zeros up to `pitch`.
inline void ConvertPaddedRow(float* HWY_RESTRICT to, const RowTensor& t, int64_t at, int64_t n,
                             int64_t pitch) {
  ConvertRow(to, t, at, n);
  std::fill_n(to + n, pitch - n, 0.0f);
}

// True where no element of `count` rows of n is NaN or infinite.
inline bool AllFinite(const float* HWY_RESTRICT rows, int64_t n, int64_t count = 1, int64_t stride = 0) {
  const D d;
  const V zero = hn::Zero(d);
  // x * 0 is 0, or NaN for what is not finite; NaN stays.
  V bad = zero, bad1 = zero, bad2 = zero, bad3 = zero;
  bool finite = true;
  for (int64_t r = 0; r < count; ++r, rows += stride) {
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      bad = hn::MulAdd(hn::LoadU(d, rows + i), zero, bad);
      bad1 = hn::MulAdd(hn::LoadU(d, rows + i + kLanes), zero, bad1);
      bad2 = hn::MulAdd(hn::LoadU(d, rows + i + 2 * kLanes), zero, bad2);
      bad3 = hn::MulAdd(hn::LoadU(d, rows + i + 3 * kLanes), zero, bad3);
    }
    for (; i + kLanes <= n; i += kLanes) bad = hn::MulAdd(hn::LoadU(d, rows + i), zero, bad);
    for (; i < n; ++i) finite = finite && std::isfinite(rows[i]);
  }
  bad = hn::Add(hn::Add(bad, bad1), hn::Add(bad2, bad3));
  return finite && hn::AllTrue(d, hn::Eq(bad, bad));
}

inline float Dot(const float* HWY_RESTRICT x, const float* HWY_RESTRICT y, int64_t n) {
  const D d;
  V sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

// `count` rows of one head from row0 on.
inline void AskForRows(Ahead& ahead, int slot, const RowTensor& t, int64_t b, int64_t head, int64_t row0,
                       int64_t count, int64_t dim) {
  const int64_t element = t.dtype == DType::f32 ? 4 : 2;
  const int64_t at = t.at(b, row0, head);
  ahead.set(slot, static_cast<const char*>(t.data) + element * at, element * t.row_stride, element * dim,
            count);
}

// Rows [row0, row0 + n) of one head as fp32: in place, or brought together in `buffer`. `gather` brings fp32
// rows together too, where they will be read many times: at the stride of [row, head, dim] they fall into few
// sets of the caches.
inline const float* RowsAsFloat(const RowTensor& t, int64_t b, int64_t head, int64_t row0, int n, int64_t dim,
                                int64_t pitch, float* buffer, bool gather, int64_t* stride) {
  const int64_t at = t.at(b, row0, head);
  if (t.dtype == DType::f32 && (!gather || t.row_stride <= pitch)) {
    *stride = t.row_stride;
    return static_cast<const float*>(t.data) + at;
  }
  for (int j = 0; j < n; ++j) ConvertRow(buffer + j * pitch, t, at + j * t.row_stride, dim);
  *stride = pitch;
  return buffer;
}

// RowsAsFloat of keys [j0, j0 + n) of a sequence, wherever they lie.
inline const float* KeysAsFloat(const ForwardParams& p, const RowTensor& t, const Sequence& s, int64_t b,
                                int64_t head, int64_t j0, int n, int64_t dim, int64_t pitch, float* buffer,
                                bool gather, int64_t* stride) {
  KeyRun run = key_run(p, s, b, j0, n);
  if (run.count == n) return RowsAsFloat(t, run.block, head, run.row, n, dim, pitch, buffer, gather, stride);
  for (int64_t j = 0; j < n; j += run.count) {
    run = key_run(p, s, b, j0 + j, n - j);
    const int64_t at = t.at(run.block, run.row, head);
    for (int64_t i = 0; i < run.count; ++i)
      ConvertRow(buffer + (j + i) * pitch, t, at + i * t.row_stride, dim);
  }
  *stride = pitch;
  return buffer;
}

// Rows of `ld` floats: sets lanes [0, begin) and [end, width) to `value`.
inline void FillOutside(float* HWY_RESTRICT rows, int64_t ld, int n, int begin, int end, int width,
                        float value) {
  if (begin == 0 && end == width) return;
  for (int j = 0; j < n; ++j) {
    std::fill_n(rows + j * ld, begin, value);
    std::fill_n(rows + j * ld + end, width - end, value);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
