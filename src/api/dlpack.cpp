#include "api/dlpack.h"

#include "api/border.h"
#include "tilewise/tensor.h"

namespace tilewise {
namespace {

Status read_dtype(dlpack::DataType type, int32_t* dtype) {
  if (type.lanes != 1)
    return {Code::invalid, cat("DLPack tensor has ", type.lanes, " lanes an element; accepted: 1")};
  const struct {
    uint8_t code, bits;
    DType dtype;
  } known[] = {{dlpack::kFloat, 32, DType::f32},         {dlpack::kFloat, 16, DType::f16},
               {dlpack::kBfloat, 16, DType::bf16},       {dlpack::kInt, 32, DType::i32},
               {dlpack::kInt, 64, DType::i64},           {dlpack::kUint, 64, DType::u64},
               {dlpack::kBool, 8, DType::boolean},       {dlpack::kInt, 8, DType::i8},
               {dlpack::kFloat8E4m3fn, 8, DType::f8e4m3}};
  for (const auto& k : known) {
    if (type.code == k.code && type.bits == k.bits) {
      *dtype = static_cast<int32_t>(k.dtype);
      return {};
    }
  }
  return {
      Code::invalid,
      cat("DLPack tensor has type code ", static_cast<int>(type.code), " with ", static_cast<int>(type.bits),
          " bits; accepted: float 16 or 32, bfloat 16, float8_e4m3fn, int 8, 32 or 64, uint 64, bool 8")};
}

Status read_device(dlpack::Device device, tilewise_tensor* out) {
  switch (device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:  // pinned host memory
      out->device_kind = TILEWISE_CPU;
      return {};
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      out->device_kind = TILEWISE_CUDA;
      out->device_index = device.index;
      return {};
    default:
      return {Code::invalid, cat("DLPack tensor is on device type ", device.type,
                                 "; accepted: 1 (CPU), 2 (CUDA), 3 (CUDA host), 13 (CUDA managed)")};
  }
}

Status read_tensor(const dlpack::Tensor& t, uint32_t flags, tilewise_tensor* out) {
  if (t.rank < 0 || t.rank > TILEWISE_MAX_RANK)
    return {Code::invalid,
            cat("DLPack tensor has ", t.rank, " dimensions; accepted: 0 to ", TILEWISE_MAX_RANK)};
  if (t.rank > 0 && !t.shape) return {Code::invalid, "DLPack tensor has a NULL shape"};
  int32_t dtype = 0;
  if (Status s = read_dtype(t.dtype, &dtype); !s.ok()) return s;
  for (int32_t i = 0; i < t.rank; ++i) {
    if (t.shape[i] < 0)
      return {Code::invalid,
              cat("DLPack tensor has shape ", shape_text(t.shape, t.rank), "; accepted: sizes of 0 or more")};
  }
  void* data = t.data ? static_cast<char*>(t.data) + t.byte_offset : nullptr;
  *out = tilewise_tensor_make(data, dtype, t.rank, t.shape);
  out->flags = flags;
  for (int32_t i = 0; t.strides && i < t.rank; ++i) out->stride[i] = t.strides[i];
  return read_device(t.device, out);
}

}  // namespace
}  // namespace tilewise

using namespace tilewise;

tilewise_code tilewise_tensor_from_dlpack(const void* dl_managed_tensor, tilewise_tensor* out,
                                          tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!dl_managed_tensor) return null_argument("dl_managed_tensor");
    if (!out) return null_argument("out");
    return read_tensor(static_cast<const dlpack::ManagedTensor*>(dl_managed_tensor)->tensor, 0, out);
  });
}

tilewise_code tilewise_tensor_from_dlpack_versioned(const void* dl_managed_tensor_versioned,
                                                    tilewise_tensor* out, tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!dl_managed_tensor_versioned) return null_argument("dl_managed_tensor_versioned");
    if (!out) return null_argument("out");
    const auto& managed = *static_cast<const dlpack::ManagedTensorVersioned*>(dl_managed_tensor_versioned);
    if (managed.version.major != dlpack::kMajorVersion) {
      return {Code::invalid, cat("DLPack tensor has version ", managed.version.major, ".",
                                 managed.version.minor, "; accepted: 1.x (0.x comes as a DLManagedTensor)")};
    }
    return read_tensor(managed.tensor, (managed.flags & dlpack::kReadOnly) ? TILEWISE_READ_ONLY : 0, out);
  });
}
