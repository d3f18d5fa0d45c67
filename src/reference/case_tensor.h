// CaseTensor: one tensor's memory in a test: guard bytes, elements with gaps, guard bytes.
#ifndef TILEWISE_REFERENCE_CASE_TENSOR_H_
#define TILEWISE_REFERENCE_CASE_TENSOR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise {

// What outputs hold before a run.
enum class Poison { nan, large };

class CaseTensor {
 public:
  CaseTensor() = default;
  CaseTensor(CaseTensor&&) = default;
  CaseTensor& operator=(CaseTensor&&) = default;
  // `lead` elements lie before the view's first one.
  CaseTensor(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> stride, int64_t lead);

  bool present() const { return memory_ != nullptr; }
  void* data() { return memory_.get() + kGuard + lead_bytes_; }
  const void* data() const { return memory_.get() + kGuard + lead_bytes_; }
  const Tensor& view() const { return view_; }
  Tensor view_as_input() const;
  DType dtype() const { return view_.type(); }

  void fill(Poison poison);
  // All of its memory, guards too.
  std::byte* memory() { return memory_.get(); }
  int64_t memory_bytes() const { return bytes_ + 2 * kGuard; }
  // Keeps a copy, to find out later what was changed.
  void remember();
  // Empty, or what was changed since remember() outside `owned` (element offsets from data()).
  std::string changed_outside(const std::vector<int64_t>& owned) const;

 private:
  static constexpr int64_t kGuard = 256;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> memory_{nullptr, nullptr};
  std::vector<std::byte> remembered_;
  int64_t bytes_ = 0, lead_bytes_ = 0;
  Tensor view_;
};

// Bytes of one element; a bit counts as one byte.
inline int64_t element_bytes(DType dtype) { return dtype == DType::bit ? 1 : bits_of(dtype) / 8; }

inline std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> stride(shape.size(), 1);
  for (size_t n = shape.size(); n-- > 1;) stride[n - 1] = stride[n] * std::max<int64_t>(1, shape[n]);
  return stride;
}

// body(index, element offset, flat number) for every element, innermost dimension fastest.
template <typename F>
void for_each_element(const Tensor& view, F&& body) {
  int64_t count = 1;
  for (int n = 0; n < view.rank; ++n) count *= view.shape[n];
  std::vector<int64_t> index(static_cast<size_t>(view.rank), 0);
  for (int64_t flat = 0; flat < count; ++flat) {
    int64_t at = 0;
    for (int n = 0; n < view.rank; ++n) at += index[static_cast<size_t>(n)] * view.stride[n];
    body(index, at, flat);
    for (int n = view.rank; n-- > 0;) {
      if (++index[static_cast<size_t>(n)] < view.shape[n]) break;
      index[static_cast<size_t>(n)] = 0;
    }
  }
}

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_CASE_TENSOR_H_
