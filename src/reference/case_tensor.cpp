#include "reference/case_tensor.h"

#include <cstring>
#include <limits>
#include <new>

#include "reference/elements.h"

namespace tilewise {
namespace {

constexpr std::byte kGuardByte{0xa5};

// What a poisoned element holds.
void poison_element(void* data, DType dtype, int64_t at, Poison poison) {
  const double large = dtype == DType::f16 ? 6e4 : 3e38;
  write_element(data, dtype, at, poison == Poison::nan ? std::numeric_limits<double>::quiet_NaN() : large);
}

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f8e4m3;
}

}  // namespace

CaseTensor::CaseTensor(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> stride, int64_t lead) {
  view_ = Tensor();
  view_.dtype = static_cast<int32_t>(dtype);
  view_.rank = static_cast<int32_t>(shape.size());
  int64_t last = 0;
  bool empty = false;
  for (size_t n = 0; n < shape.size(); ++n) {
    view_.shape[n] = shape[n];
    view_.stride[n] = stride[n];
    last += std::max<int64_t>(0, shape[n] - 1) * stride[n];
    empty = empty || shape[n] == 0;
  }
  const int64_t elements = empty ? 0 : last + 1;
  const int64_t tail = lead > 0 ? 3 : 0;  // a sliced tensor has something behind it too
  bytes_ = dtype == DType::bit ? (elements + 7) / 8 : (lead + elements + tail) * element_bytes(dtype);
  lead_bytes_ = lead * element_bytes(dtype);
  const int64_t whole = (bytes_ + 2 * kGuard + kGuard - 1) / kGuard * kGuard;
  memory_ = {static_cast<std::byte*>(::operator new (static_cast<size_t>(whole), std::align_val_t{kGuard})),
             [](std::byte* p) { ::operator delete (p, std::align_val_t{kGuard}); }};
  std::memset(memory_.get(), static_cast<int>(kGuardByte), static_cast<size_t>(whole));
  view_.data = data();
  fill(Poison::nan);
}

Tensor CaseTensor::view_as_input() const {
  Tensor view = view_;
  view.flags |= TILEWISE_READ_ONLY;
  return view;
}

void CaseTensor::fill(Poison poison) {
  if (!is_float(dtype())) {
    std::memset(memory_.get() + kGuard, 0x7f, static_cast<size_t>(bytes_));
    return;
  }
  std::byte* first = memory_.get() + kGuard;
  for (int64_t n = 0; n < bytes_ / element_bytes(dtype()); ++n) poison_element(first, dtype(), n, poison);
}

void CaseTensor::remember() { remembered_.assign(memory_.get(), memory_.get() + bytes_ + 2 * kGuard); }

std::string CaseTensor::changed_outside(const std::vector<int64_t>& owned) const {
  std::vector<uint8_t> mine(remembered_.size(), 0);
  const int64_t size = element_bytes(dtype());
  for (const int64_t at : owned) {
    std::memset(mine.data() + kGuard + lead_bytes_ + at * size, 1, static_cast<size_t>(size));
  }
  for (size_t n = 0; n < remembered_.size(); ++n) {
    if (mine[n] == 0 && memory_.get()[n] != remembered_[n]) {
      const int64_t byte = static_cast<int64_t>(n) - kGuard - lead_bytes_;
      return "byte " + std::to_string(byte) +
             " from its first element was written, which the call does not own";
    }
  }
  return {};
}

}  // namespace tilewise
