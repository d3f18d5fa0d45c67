// The C exchange of DLPack 1.3: a type's capsule `__dlpack_c_exchange_api__` holds functions that look at an
// array without a call into Python. The structs are that document's
// (dmlc.github.io/dlpack/latest/c_api.html).
#ifndef TILEWISE_PYTHON_EXCHANGE_H_
#define TILEWISE_PYTHON_EXCHANGE_H_

#include <cstdint>

#include <nanobind/nanobind.h>

#include "tilewise/c.h"

namespace tilewise_python {

// A view of `object`, which must outlive it, where its type has the exchange; false where it has none or
// refuses, and for an array of a device whose current stream there is another than the call's: the exchange
// orders nothing. `stream` is null where the call is the CPU's.
bool read_by_exchange(nanobind::handle object, const uintptr_t* stream, tilewise_tensor* tensor);

}  // namespace tilewise_python
#endif  // TILEWISE_PYTHON_EXCHANGE_H_
