// Address space that is memory only where it is touched: tensors far larger than the machine cost what their
// used elements cost.
#ifndef TILEWISE_TESTS_SUPPORT_SPARSE_MEMORY_H_
#define TILEWISE_TESTS_SUPPORT_SPARSE_MEMORY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace tilewise::testing_support {

class SparseMemory {
 public:
  // Zeros. Null data where there is no such address space (a limit on it, or strict accounting of memory).
  explicit SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* at =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
    // A huge page would make 2 MB of a touched element.
    if (data_ != nullptr) madvise(data_, bytes_, MADV_NOHUGEPAGE);
  }
  ~SparseMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }
  // Zeros again, whole pages from `first` on; false where the system keeps what was written. An emulator
  // takes time for each page of them, touched or not.
  bool clear(int64_t first, int64_t bytes) const {
    return madvise(data_ + first, static_cast<size_t>(bytes), MADV_DONTNEED) == 0;
  }

 private:
  size_t bytes_;
  std::byte* data_;
};

}  // namespace tilewise::testing_support
#endif  // TILEWISE_TESTS_SUPPORT_SPARSE_MEMORY_H_
