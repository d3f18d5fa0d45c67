// Arena: hands out workspace, or only counts it, through the same calls, so that a plan's size and a run's
// layout cannot differ.
#ifndef TILEWISE_CORE_ARENA_H_
#define TILEWISE_CORE_ARENA_H_

#include <cstddef>
#include <cstdint>

namespace tilewise {

class Arena {
 public:
  Arena() = default;  // counting: take() returns null
  Arena(void* data, int64_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}

  // `count` elements, 64-byte aligned (a cache line, and the widest vector).
  template <typename T>
  T* take(int64_t count) {
    constexpr int64_t kAlign = 64;
    used_ = (used_ + kAlign - 1) / kAlign * kAlign;
    std::byte* at = data_ ? data_ + used_ : nullptr;
    used_ += count * static_cast<int64_t>(sizeof(T));
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }
  bool fits() const { return !data_ || used_ <= bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t used_ = 0;
};

}  // namespace tilewise
#endif  // TILEWISE_CORE_ARENA_H_
