// Tensor: a view of memory that somebody else owns.
#ifndef TILEWISE_TENSOR_H_
#define TILEWISE_TENSOR_H_

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "tilewise/dtype.h"
#include "tilewise/status.h"

namespace tilewise {

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<uint64_t> {
  static constexpr DType value = DType::u64;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};

// Shape and strides in elements, innermost last. Default: absent.
struct Tensor : tilewise_tensor {
  Tensor() : tilewise_tensor{} {}
  Tensor(const tilewise_tensor& other) : tilewise_tensor(other) {}
  // Row-major. Errors show where the tensor is used.
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> shape)
      : tilewise_tensor(tilewise_tensor_make(data, static_cast<int32_t>(dtype),
                                             static_cast<int32_t>(shape.size()), shape.begin())) {}
  template <typename T>
  Tensor(T* data, std::initializer_list<int64_t> shape) : Tensor(data, DTypeOf<T>::value, shape) {}
  template <typename T>
  Tensor(const T* data, std::initializer_list<int64_t> shape)
      : Tensor(const_cast<T*>(data), DTypeOf<T>::value, shape) {
    flags |= TILEWISE_READ_ONLY;
  }

  // The same memory with other strides (in elements), one for each dimension.
  Tensor with_strides(std::initializer_list<int64_t> strides) const {
    Tensor view = *this;
    int i = 0;
    for (int64_t s : strides) {
      if (i < rank) view.stride[i++] = s;
    }
    return view;
  }
  // Dimensions 1 and 2 exchanged: a [B, H, S, D] tensor read as [B, S, H, D], and back.
  Tensor bhsd_as_bshd() const {
    Tensor view = *this;
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.stride[1], view.stride[2]);
    return view;
  }
  bool present() const { return dtype != TILEWISE_NONE; }
  DType type() const { return static_cast<DType>(dtype); }
};

using Tensors = tilewise_tensors;

}  // namespace tilewise
#endif  // TILEWISE_TENSOR_H_
