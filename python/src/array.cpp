#include "array.h"

#include <cstring>
#include <string>

#include "exchange.h"

namespace tilewise_python {
namespace {

using namespace nb::literals;

// What a buffer's format says of one element; TILEWISE_NONE where no argument takes such elements.
int32_t dtype_of_format(const char* format, Py_ssize_t bytes) {
  if (std::strlen(format) != 1) return TILEWISE_NONE;
  switch (*format) {
    case 'f':
      return TILEWISE_F32;
    case 'e':
      return TILEWISE_F16;
    case '?':
      return TILEWISE_BOOL;
    case 'b':
      return TILEWISE_I8;
    case 'i':
    case 'l':
    case 'q':
      return bytes == 4 ? TILEWISE_I32 : TILEWISE_I64;
    case 'L':
    case 'Q':
      return bytes == 8 ? TILEWISE_U64 : TILEWISE_NONE;
    default:
      return TILEWISE_NONE;
  }
}

// NumPy exports ml_dtypes' types neither through DLPack nor as a buffer, but views the same bits as a type of
// its own.
struct Alias {
  const char *name, *as;
  int32_t dtype;
};
constexpr Alias kAliases[] = {{"bfloat16", "float16", TILEWISE_BF16},
                              {"float8_e4m3fn", "int8", TILEWISE_F8E4M3}};

const Alias* alias_of(nb::handle object) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  const nb::object name = nb::getattr(dtype, "name", nb::none());
  if (!nb::isinstance<nb::str>(name) || !PyObject_CheckBuffer(object.ptr())) return nullptr;
  for (const Alias& alias : kAliases) {
    if (std::strcmp(nb::cast<const char*>(name), alias.name) == 0) return &alias;
  }
  return nullptr;
}

}  // namespace

Array::Array(const char* name, nb::handle object, const uintptr_t* stream) {
  if (read_by_exchange(object, stream, &tensor_)) return;
  if (nb::hasattr(object, "__dlpack__")) {
    if (read_dlpack(name, object, stream)) return;
    if (const Alias* alias = alias_of(object)) {
      const nb::object bits = object.attr("view")(alias->as);
      if (read_dlpack(name, bits, stream) || read_buffer(name, bits)) {
        tensor_.dtype = alias->dtype;
        return;
      }
    }
  }
  if (read_buffer(name, object)) return;
  refuse(name, "it offers neither DLPack nor a buffer of numbers");
}

Array::~Array() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
}

// False where the producer refuses in a way that another protocol may mend.
bool Array::read_dlpack(const char* name, nb::handle object, const uintptr_t* stream) {
  try {
    const nb::object dlpack = object.attr("__dlpack__");
    constexpr uintptr_t kLegacyDefault = 1;  // DLPack's name of CUDA's stream 0
    const nb::object consumer =
        stream ? nb::object(nb::int_(*stream ? *stream : kLegacyDefault)) : nb::none();
    try {
      capsule_ = dlpack("stream"_a = consumer, "max_version"_a = nb::make_tuple(1, 0));
    } catch (nb::python_error& e) {  // a producer of DLPack 0.x
      if (!e.matches(PyExc_TypeError)) throw;
      capsule_ = dlpack("stream"_a = consumer);
    }
  } catch (nb::python_error& e) {
    if (PyObject_CheckBuffer(object.ptr())) return false;
    refuse(name, nb::str(e.value()).c_str());
  }
  tilewise_error error;
  tilewise_code code = TILEWISE_INVALID;
  if (void* versioned = PyCapsule_IsValid(capsule_.ptr(), "dltensor_versioned")
                            ? PyCapsule_GetPointer(capsule_.ptr(), "dltensor_versioned")
                            : nullptr) {
    code = tilewise_tensor_from_dlpack_versioned(versioned, &tensor_, &error);
  } else if (PyCapsule_IsValid(capsule_.ptr(), "dltensor")) {
    code = tilewise_tensor_from_dlpack(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"), &tensor_, &error);
  } else {
    refuse(name, "its __dlpack__ returns no DLPack capsule");
  }
  if (code != TILEWISE_OK) refuse(name, error.message);
  return true;
}

bool Array::read_buffer(const char* name, nb::handle object) {
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return false;
  }
  has_buffer_ = true;
  if (buffer_.ndim > TILEWISE_MAX_RANK) refuse(name, "it has more than 4 dimensions");
  int64_t shape[TILEWISE_MAX_RANK] = {};
  for (int i = 0; i < buffer_.ndim; ++i) shape[i] = buffer_.shape[i];
  const int32_t dtype = dtype_of_format(buffer_.format ? buffer_.format : "B", buffer_.itemsize);
  if (dtype == TILEWISE_NONE)
    refuse(name, "accepted: float16, bfloat16, float32, float8_e4m3fn, int8, int32, int64, uint64, bool");
  tensor_ = tilewise_tensor_make(buffer_.buf, dtype, buffer_.ndim, shape);
  if (buffer_.readonly) tensor_.flags |= TILEWISE_READ_ONLY;
  for (int i = 0; i < buffer_.ndim; ++i) {
    if (buffer_.strides[i] % buffer_.itemsize != 0)
      refuse(name, "its strides are no multiples of an element");
    tensor_.stride[i] = buffer_.strides[i] / buffer_.itemsize;
  }
  return true;
}

void Array::refuse(const char* name, const char* why) {
  throw nb::type_error((std::string(name) + " cannot be read as an array: " + why).c_str());
}

}  // namespace tilewise_python
