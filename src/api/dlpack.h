// DLPack's binary interface, as published at https://dmlc.github.io/dlpack/latest/ (versions 0.x and 1.x):
// the structs that a producer hands over. Only read here; whoever owns the capsule calls its deleter.
#ifndef TILEWISE_API_DLPACK_H_
#define TILEWISE_API_DLPACK_H_

#include <cstdint>

namespace tilewise::dlpack {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6, kFloat8E4m3fn = 10 };
constexpr uint32_t kMajorVersion = 1;
constexpr uint64_t kReadOnly = 1;

struct Device {
  int32_t type, index;
};
struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null = row-major
  uint64_t byte_offset;
};
struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};
struct Version {
  uint32_t major, minor;
};
struct ManagedTensorVersioned {
  Version version;
  void* manager;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

}  // namespace tilewise::dlpack
#endif  // TILEWISE_API_DLPACK_H_
