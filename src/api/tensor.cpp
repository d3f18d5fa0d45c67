#include "tilewise/tensor.h"

#include "tilewise/c.h"

// A rank or shape out of range is kept as given: the call that uses the tensor names it.
tilewise_tensor tilewise_tensor_make(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  tilewise_tensor t{};
  t.data = data;
  t.dtype = dtype;
  t.rank = rank;
  if (rank < 0 || rank > TILEWISE_MAX_RANK || !shape) return t;
  uint64_t stride = 1;  // unsigned: an absurd shape must not be undefined behaviour here
  for (int32_t i = rank - 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.stride[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(shape[i] > 0 ? shape[i] : 1);
  }
  return t;
}
