// A device's tensors on the host, for calls that look at numbers there.
#ifndef TILEWISE_API_HOST_COPIES_H_
#define TILEWISE_API_HOST_COPIES_H_

#include <deque>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise {

class HostCopies {
 public:
  explicit HostCopies(int device) : device_(device) {}

  // The same tensor, its data a copy on the host; what is absent or has no elements stays without.
  Status take(tilewise_tensor* tensor);
  Status take(tilewise_tensors* tensors);
  // The copy's bytes to where they were taken from: those between its elements are as they were.
  Status give_back(const tilewise_tensor& copy, const tilewise_tensor& original) const;

 private:
  int device_;
  std::deque<std::vector<std::byte>> memory_;
};

}  // namespace tilewise
#endif  // TILEWISE_API_HOST_COPIES_H_
