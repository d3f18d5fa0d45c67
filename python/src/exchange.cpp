#include "exchange.h"

namespace tilewise_python {
namespace {

struct Version {
  uint32_t major, minor;
};
// DLTensor, the first member of the managed tensor that the C border reads.
struct Borrowed {
  void* data;
  int32_t device_type, device_index, rank;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Exchange {
  Version version;
  const Exchange* older;
  void (*allocate)();
  void (*managed_from_object)();
  void (*managed_to_object)();
  int (*borrow)(void* object, Borrowed* tensor);  // may be null
  int (*current_work_stream)(int32_t device_type, int32_t device_index, void** stream);
};
constexpr uint32_t kMajorVersion = 1;

// Remembered for the last type: the arrays of a call are mostly of one. That type is kept alive, so that no
// other can take its address.
const Exchange* exchange_of(nanobind::handle type) {
  static nanobind::handle last;
  static const Exchange* found = nullptr;
  if (type.is(last)) return found;
  last.dec_ref();
  last = type.inc_ref();
  found = nullptr;
  const nanobind::object capsule = nanobind::getattr(type, "__dlpack_c_exchange_api__", nanobind::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api"))
    found = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (found && found->version.major > kMajorVersion) found = found->older;
  return found;
}

}  // namespace

bool read_by_exchange(nanobind::handle object, const uintptr_t* stream, tilewise_tensor* tensor) {
  const Exchange* exchange = exchange_of(object.type());
  if (!exchange || !exchange->borrow) return false;
  Borrowed borrowed{};
  if (exchange->borrow(object.ptr(), &borrowed) != 0) {
    PyErr_Clear();
    return false;
  }
  if (tilewise_tensor_from_dlpack(&borrowed, tensor, nullptr) != TILEWISE_OK) return false;
  if (!stream || tensor->device_kind != TILEWISE_CUDA) return true;
  void* theirs = nullptr;
  return exchange->current_work_stream &&
         exchange->current_work_stream(borrowed.device_type, borrowed.device_index, &theirs) == 0 &&
         reinterpret_cast<uintptr_t>(theirs) == *stream;
}

}  // namespace tilewise_python
