// What memory there is and what this process used, as the system tells it.
#ifndef TILEWISE_CLI_MEMORY_H_
#define TILEWISE_CLI_MEMORY_H_

#include <cstdint>
#include <memory>

namespace tilewise::cli {

// Bytes that may still be allocated: the least of free system memory, what the control group leaves and what
// the process's own limit leaves. INT64_MAX where nothing tells.
int64_t available_memory();

int64_t resident_bytes();       // now; 0 where the system does not tell
int64_t peak_resident_bytes();  // since the start or the last reset
bool reset_peak_resident();     // false where the system does not allow it

// Memory for a tensor, 64-byte aligned, untouched: pages appear when they are written. Null where there is
// none.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_MEMORY_H_
