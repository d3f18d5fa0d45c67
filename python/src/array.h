// Array: a Python array as a tilewise_tensor, for the time of one call.
#ifndef TILEWISE_PYTHON_ARRAY_H_
#define TILEWISE_PYTHON_ARRAY_H_

#include <cstdint>

#include <nanobind/nanobind.h>

#include "tilewise/c.h"

namespace tilewise_python {

namespace nb = nanobind;

// Holds whatever keeps the memory in place: a DLPack capsule, which frees itself as long as nobody renames
// it, or a buffer. Made and destroyed with the GIL held.
class Array {
 public:
  // `name` is the argument, for errors. `stream` is what the call is enqueued on, for producers whose work is
  // on another; null where the call is the CPU's.
  Array(const char* name, nb::handle object, const uintptr_t* stream);
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const tilewise_tensor& tensor() const { return tensor_; }

 private:
  bool read_dlpack(const char* name, nb::handle object, const uintptr_t* stream);
  bool read_buffer(const char* name, nb::handle object);
  [[noreturn]] static void refuse(const char* name, const char* why);

  tilewise_tensor tensor_{};
  nb::object capsule_;
  Py_buffer buffer_{};
  bool has_buffer_ = false;
};

}  // namespace tilewise_python
#endif  // TILEWISE_PYTHON_ARRAY_H_
