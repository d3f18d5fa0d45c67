// Single elements of tensors as numbers: what the oracle and the comparison read and write.
#ifndef TILEWISE_REFERENCE_ELEMENTS_H_
#define TILEWISE_REFERENCE_ELEMENTS_H_

#include <cstdint>

#include "core/element.h"
#include "core/params.h"

namespace tilewise {

inline double read_element(const void* data, DType dtype, int64_t at) {
  return load_element(data, dtype, at);
}

// Rounds once for f32; by way of f32 for the 16-bit types.
inline void write_element(void* data, DType dtype, int64_t at, double value) {
  store_element(data, dtype, at, static_cast<float>(value));
}

// `value` as it would be after a store to `dtype` and a load.
inline double rounded_to(DType dtype, double value) {
  const float rounded = static_cast<float>(value);
  switch (dtype) {
    case DType::f16:
      return float_of_f16(f16_of_float(rounded));
    case DType::bf16:
    case DType::f8e4m3:  // of quantised values, the naive run is one in bf16
    case DType::i8:
      return float_of_bf16(bf16_of_float(rounded));
    default:
      return rounded;
  }
}

// Largest relative error of one rounding to nearest.
inline double rounding_unit(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    default:
      return 0x1p-24;
  }
}

// Below it, rounding errs by rounding_unit(dtype) * smallest_normal(dtype), whatever the value.
inline double smallest_normal(DType dtype) { return dtype == DType::f16 ? 0x1p-14 : 0x1p-126; }

// Offsets in elements; `row` counts within the sequence that begins at `begin` (0 unless packed).
inline int64_t offset_of(const RowTensor& t, int64_t b, int64_t begin, int64_t row, int64_t h) {
  return b * t.batch_stride + (begin + row) * t.row_stride + h * t.head_stride;
}
inline int64_t offset_of(const RowStats& t, int64_t b, int64_t begin, int64_t row, int64_t h) {
  return b * t.batch_stride + (begin + row) * t.row_stride + h * t.head_stride;
}
inline int64_t offset_of(const ScoreTensor& t, int64_t b, int64_t h, int64_t row, int64_t key) {
  return b * t.batch_stride + h * t.head_stride + row * t.row_stride + key * t.key_stride;
}
inline int64_t read_integer(const IndexTensor& t, int64_t b, int64_t row = 0, int64_t inner = 0) {
  const int64_t at = b * t.batch_stride + row * t.row_stride + inner * t.inner_stride;
  return t.dtype == DType::i64 ? static_cast<const int64_t*>(t.data)[at]
                               : static_cast<const int32_t*>(t.data)[at];
}

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_ELEMENTS_H_
