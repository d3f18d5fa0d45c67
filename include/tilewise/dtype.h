// DType: what one element is. Apart from tensor.h, because kernel units read it once for each architecture.
#ifndef TILEWISE_DTYPE_H_
#define TILEWISE_DTYPE_H_

#include <cstdint>

#include "tilewise/c_problem.h"

namespace tilewise {

enum class DType : int32_t {
  none = TILEWISE_NONE,
  f32 = TILEWISE_F32,
  f16 = TILEWISE_F16,
  bf16 = TILEWISE_BF16,
  i32 = TILEWISE_I32,
  i64 = TILEWISE_I64,
  u64 = TILEWISE_U64,
  boolean = TILEWISE_BOOL,
  bit = TILEWISE_BIT,
  f8e4m3 = TILEWISE_F8E4M3,
  i8 = TILEWISE_I8,
};

// Bits of one element; 0 for none.
constexpr int bits_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 32;
    case DType::f16:
    case DType::bf16:
      return 16;
    case DType::i64:
    case DType::u64:
      return 64;
    case DType::boolean:
    case DType::f8e4m3:
    case DType::i8:
      return 8;
    case DType::bit:
      return 1;
    case DType::none:
      return 0;
  }
  return 0;
}

constexpr bool is_dtype(int32_t value) { return value >= TILEWISE_NONE && value <= TILEWISE_I8; }

// What k and v of a cache may be beside the floating-point dtypes: their elements are to be multiplied by
// scales.
constexpr bool is_quantized(DType dtype) { return dtype == DType::f8e4m3 || dtype == DType::i8; }

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u64:
      return "u64";
    case DType::boolean:
      return "bool";
    case DType::bit:
      return "bit";
    case DType::f8e4m3:
      return "f8e4m3";
    case DType::i8:
      return "i8";
    case DType::none:
      return "none";
  }
  return "none";
}

}  // namespace tilewise
#endif  // TILEWISE_DTYPE_H_
