#include "api/host_copies.h"

#include "api/check.h"
#include "cuda/mirror.h"
#include "cuda/runtime.h"

namespace tilewise {

Status HostCopies::take(tilewise_tensor* tensor) {
  if (!present(*tensor)) return {};
  const auto [from, bytes] = cuda::span_of(*tensor);
  tensor->device_kind = TILEWISE_CPU;
  tensor->device_index = 0;
  if (bytes == 0) return {};
  // Elements keep their place within 64 bytes, and so their alignment.
  constexpr uintptr_t kAlign = 64;
  const uintptr_t lead = reinterpret_cast<uintptr_t>(from) % kAlign;
  auto& memory = memory_.emplace_back(static_cast<size_t>(bytes) + 2 * kAlign);
  const uintptr_t start = (reinterpret_cast<uintptr_t>(memory.data()) + kAlign - 1) / kAlign * kAlign + lead;
  std::byte* to = memory.data() + (start - reinterpret_cast<uintptr_t>(memory.data()));
  if (Status s = cuda::copy(device_, to, from, bytes); !s.ok()) return s;
  tensor->data = to + (static_cast<const std::byte*>(tensor->data) - from);
  return {};
}

Status HostCopies::take(tilewise_tensors* tensors) {
  for (tilewise_tensor* t = &tensors->q; t <= &tensors->dsinks; ++t) {
    if (Status s = take(t); !s.ok()) return s;
  }
  return {};
}

Status HostCopies::give_back(const tilewise_tensor& copy, const tilewise_tensor& original) const {
  const auto [from, bytes] = cuda::span_of(copy);
  if (bytes == 0) return {};
  const auto* to = cuda::span_of(original).first;
  return cuda::copy(device_, const_cast<std::byte*>(to), from, bytes);
}

}  // namespace tilewise
