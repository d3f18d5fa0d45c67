#include "cuda/mirror.h"

#include <algorithm>
#include <cstring>

#include "cuda/runtime.h"

namespace tilewise::cuda {
namespace {

constexpr int64_t kAlign = 256;  // twins keep their originals' alignment up to this

int64_t rounded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

template <typename F>
void for_each_tensor(const tilewise_tensors& tensors, F&& use) {
  for (const tilewise_tensor* t = &tensors.q; t <= &tensors.dsinks; ++t) {
    if (t->dtype != TILEWISE_NONE) use(*t);
  }
}

}  // namespace

std::pair<const std::byte*, int64_t> span_of(const tilewise_tensor& t) {
  const int bits = bits_of(static_cast<DType>(t.dtype));
  int64_t low = 0, high = 0;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] == 0) return {nullptr, 0};
    const int64_t reach = t.shape[i] == 1 ? 0 : t.stride[i] * (t.shape[i] - 1);
    (reach < 0 ? low : high) += reach;
  }
  const int64_t first = low * bits / 8, last = ((high + 1) * bits + 7) / 8;
  return {static_cast<const std::byte*>(t.data) + first, last - first};
}

Mirror::~Mirror() { release(device_, block_); }

void Mirror::add(const void* host, int64_t bytes) {
  const int64_t lead = static_cast<int64_t>(reinterpret_cast<uintptr_t>(host) % kAlign);
  if (bytes > 0) ranges_.push_back({static_cast<const std::byte*>(host), bytes, this->bytes() + lead});
}

void Mirror::add(const tilewise_tensor& tensor) {
  const auto [host, bytes] = span_of(tensor);
  if (bytes > 0 && !range_of(host)) add(host, bytes);
}

void Mirror::add(const tilewise_tensors& tensors) {
  for_each_tensor(tensors, [&](const tilewise_tensor& t) { add(t); });
}

int64_t Mirror::bytes() const {
  return ranges_.empty() ? 0 : rounded(ranges_.back().at + ranges_.back().bytes);
}

Status Mirror::upload() {
  const int64_t needed = bytes();
  if (needed > capacity_) {
    release(device_, block_);
    block_ = nullptr;
    capacity_ = 0;
    if (Status s = allocate(device_, needed, &block_); !s.ok()) return s;
    capacity_ = needed;
  }
  // Many small ranges go as one copy, large ones from where they are.
  constexpr int64_t kLarge = int64_t{1} << 22;
  if (needed > kLarge) {
    for (const Range& r : ranges_) {
      if (Status s = copy(device_, static_cast<std::byte*>(block_) + r.at, r.host, r.bytes); !s.ok())
        return s;
    }
    return {};
  }
  staging_.assign(static_cast<size_t>(needed), std::byte{0});
  for (const Range& r : ranges_) std::memcpy(staging_.data() + r.at, r.host, static_cast<size_t>(r.bytes));
  return copy(device_, block_, staging_.data(), needed);
}

const Mirror::Range* Mirror::range_of(const void* host) const {
  const auto* at = static_cast<const std::byte*>(host);
  for (const Range& r : ranges_) {
    if (r.host <= at && at < r.host + r.bytes) return &r;
  }
  return nullptr;
}

Status Mirror::download(void* host, int64_t bytes) const {
  if (bytes == 0) return {};
  const Range* r = range_of(host);
  if (!r) return {Code::invalid, "memory without a twin"};
  const int64_t inside = static_cast<const std::byte*>(host) - r->host;
  return copy(device_, host, static_cast<std::byte*>(block_) + r->at + inside, bytes);
}

Status Mirror::download(const tilewise_tensor& tensor) const {
  const auto [host, bytes] = span_of(tensor);
  return download(const_cast<std::byte*>(host), bytes);
}

Tensor Mirror::twin(const tilewise_tensor& tensor) const {
  Tensor twin(tensor);
  twin.device_kind = TILEWISE_CUDA;
  twin.device_index = device_;
  if (const Range* r = range_of(tensor.data))
    twin.data =
        static_cast<std::byte*>(block_) + r->at + (static_cast<const std::byte*>(tensor.data) - r->host);
  return twin;
}

Tensors Mirror::twins(const tilewise_tensors& tensors) const {
  Tensors twins = tensors;
  for (tilewise_tensor* t = &twins.q; t <= &twins.dsinks; ++t) {
    if (t->dtype != TILEWISE_NONE) *t = twin(*t);
  }
  return twins;
}

}  // namespace tilewise::cuda
