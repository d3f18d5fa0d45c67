// TensorChecks: what a single tensor, and all tensors of a call together, must satisfy. The first broken rule
// is kept as a sentence; nothing is allocated while none is broken.
#ifndef TILEWISE_API_CHECK_H_
#define TILEWISE_API_CHECK_H_

#include <cstdint>
#include <initializer_list>

#include "tilewise/tensor.h"

namespace tilewise {

// A device.
struct Place {
  int32_t kind = TILEWISE_CPU, index = 0;
};

enum class Access { input, output };

// Sizes that a tensor must have, and what they are called.
struct Shape {
  int rank;
  int64_t size[TILEWISE_MAX_RANK];
  const char* labels;  // "[batch, seqlen_q, heads_q, head_dim]"
};

struct Rules {
  Access access = Access::input;
  bool unit_inner = false;  // innermost stride 1
  int32_t alignment = 1;    // bytes, of base and outer strides
};

inline DType type_of(const tilewise_tensor& t) { return static_cast<DType>(t.dtype); }

inline bool present(const tilewise_tensor& t) { return t.dtype != TILEWISE_NONE; }

// The stride of a size-1 dimension is whatever the caller left there; it is never used.
inline int64_t stride_of(const tilewise_tensor& t, int dimension) {
  return t.shape[dimension] == 1 ? 0 : t.stride[dimension];
}

inline bool has_elements(const tilewise_tensor& t) {
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] == 0) return false;
  }
  return true;
}

class TensorChecks {
 public:
  explicit TensorChecks(int32_t device_kind, int32_t device_index = 0)
      : device_kind_(device_kind), device_index_(device_index) {}

  bool ok() const { return status_.ok(); }
  Status take_status() { return std::move(status_); }
  // Keeps the first failure; always false.
  bool fail(std::string sentence);

  bool require(const char* name, const tilewise_tensor& t);
  bool rank(const char* name, const tilewise_tensor& t, int rank, const char* labels);
  bool dtype(const char* name, const tilewise_tensor& t, std::initializer_list<DType> accepted);
  // Shape, device, data, strides, alignment; remembers the memory for overlaps().
  bool layout(const char* name, const tilewise_tensor& t, const Shape& shape, Rules rules);
  // No output shares memory with another tensor. Views that only interleave (slices of one packed tensor)
  // pass.
  bool overlaps();

 private:
  struct Extent {
    const char* name;
    uintptr_t low, high;  // bytes [low, high)
    bool dense;           // every byte of it belongs to the tensor
    bool output;
  };
  bool plain(const char* name, const tilewise_tensor& t, const Shape& shape, Rules rules);
  bool strides(const char* name, const tilewise_tensor& t, Rules rules);
  bool remember(const char* name, const tilewise_tensor& t, Rules rules);

  static constexpr int kMost = 32;
  int32_t device_kind_, device_index_;
  Status status_;
  Extent extents_[kMost];
  int count_ = 0;
};

}  // namespace tilewise
#endif  // TILEWISE_API_CHECK_H_
