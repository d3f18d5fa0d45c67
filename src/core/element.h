// One element of rows of q, k, v and their like, in any storage type.
#ifndef TILEWISE_CORE_ELEMENT_H_
#define TILEWISE_CORE_ELEMENT_H_

#include <cstdint>

#include "core/half.h"
#include "tilewise/dtype.h"

namespace tilewise {

inline float load_element(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[at];
    case DType::f16:
      return float_of_f16(static_cast<const uint16_t*>(data)[at]);
    case DType::bf16:
      return float_of_bf16(static_cast<const uint16_t*>(data)[at]);
    case DType::f8e4m3:
      return float_of_f8e4m3(static_cast<const uint8_t*>(data)[at]);
    case DType::i8:
      return static_cast<float>(static_cast<const int8_t*>(data)[at]);
    default:
      return 0.0f;
  }
}

inline void store_element(void* data, DType dtype, int64_t at, float value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[at] = value;
      break;
    case DType::f16:
      static_cast<uint16_t*>(data)[at] = f16_of_float(value);
      break;
    case DType::bf16:
      static_cast<uint16_t*>(data)[at] = bf16_of_float(value);
      break;
    case DType::f8e4m3:
      static_cast<uint8_t*>(data)[at] = f8e4m3_of_float(value);
      break;
    case DType::i8:
      static_cast<int8_t*>(data)[at] = i8_of_float(value);
      break;
    default:
      break;
  }
}

}  // namespace tilewise
#endif  // TILEWISE_CORE_ELEMENT_H_
