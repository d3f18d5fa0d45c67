// Mirror: copies of host memory on a device, in one block, for calls whose data lives on the host: tests, and
// the command line. A tensor whose memory is inside an added range has a twin at the same place on the
// device.
#ifndef TILEWISE_CUDA_MIRROR_H_
#define TILEWISE_CUDA_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::cuda {

// Lowest address and count of the bytes that a tensor's elements span; 0 without elements.
std::pair<const std::byte*, int64_t> span_of(const tilewise_tensor& tensor);

class Mirror {
 public:
  explicit Mirror(int device) : device_(device) {}
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // Forgets the ranges; keeps the device's block for the next ones.
  void clear() { ranges_.clear(); }
  void add(const void* host, int64_t bytes);
  // The bytes that a tensor's elements span.
  void add(const tilewise_tensor& tensor);
  void add(const tilewise_tensors& tensors);

  int64_t bytes() const;  // what the block needs
  Status upload();        // every range
  Status download(void* host, int64_t bytes) const;
  Status download(const tilewise_tensor& tensor) const;  // to where it is on the host

  // The twin; an absent tensor, or one without elements, stays what it is, on the device.
  Tensor twin(const tilewise_tensor& tensor) const;
  Tensors twins(const tilewise_tensors& tensors) const;

 private:
  struct Range {
    const std::byte* host;
    int64_t bytes, at;  // offset in the block
  };
  const Range* range_of(const void* host) const;

  int device_;
  void* block_ = nullptr;
  int64_t capacity_ = 0;
  std::vector<Range> ranges_;
  std::vector<std::byte> staging_;
};

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_MIRROR_H_
