// Call: the tensors of one call, read out of a dictionary of Python arrays; and how a refusal becomes an
// exception.
#ifndef TILEWISE_PYTHON_CALL_H_
#define TILEWISE_PYTHON_CALL_H_

#include <cstdint>
#include <optional>

#include "array.h"

namespace tilewise_python {

// How every function here is called.
struct Setting {
  bool bhsd = false;     // q, k, v, o and their gradients are [batch, heads, seqlen, dim]
  bool cuda = false;     // tensors are on a CUDA device, `stream` is the caller's
  uintptr_t stream = 0;  // a cudaStream_t
  int32_t threads = 0;   // of the CPU; 0 = the library's default

  void* stream_pointer() const { return reinterpret_cast<void*>(stream); }
  const uintptr_t* stream_of_arrays() const { return cuda ? &stream : nullptr; }
};

// Arrays by the names of tilewise_tensors; None is absent. An unknown name is an error of this package.
class Call {
 public:
  Call(const nb::dict& arrays, const Setting& setting);
  const tilewise_tensors& tensors() const { return tensors_; }
  tilewise_tensors& tensors() { return tensors_; }

 private:
  static constexpr int kMaxArrays = 32;
  std::optional<Array> arrays_[kMaxArrays];
  tilewise_tensors tensors_{};
};

// Dimensions 1 and 2 exchanged where the setting says so and there are four.
tilewise_tensor as_bshd(tilewise_tensor tensor, const Setting& setting);

// Raises the Python exception of a code that is not OK.
void raise_if_refused(tilewise_code code, const tilewise_error& error);

}  // namespace tilewise_python
#endif  // TILEWISE_PYTHON_CALL_H_
