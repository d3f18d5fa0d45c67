#include "cuda/sm90/tensor_map.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstring>

namespace tilewise::sm90 {

namespace {

// From the driver that is loaded, so that the library needs none at link time.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  return error == cudaSuccess ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function) : nullptr;
}

constexpr int64_t kElementBytes = 2, kStrideBytes = 16;
constexpr int64_t kLargestStride = int64_t{1} << 40;

bool is_stride(int64_t elements) {
  const int64_t bytes = elements * kElementBytes;
  return bytes > 0 && bytes % kStrideBytes == 0 && bytes < kLargestStride;
}

}  // namespace

const char* tensor_map_refuses(const RowTensor& tensor, const TensorExtent& extent) {
  if (reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0)
    return "the data must begin at a multiple of 16 bytes";
  const bool rows = extent.rows <= 1 || is_stride(tensor.row_stride);
  const bool heads = extent.heads <= 1 || tensor.head_stride == 0 || is_stride(tensor.head_stride);
  const bool batch = extent.batch <= 1 || tensor.batch_stride == 0 || is_stride(tensor.batch_stride);
  if (!rows) return "the stride between rows must be a positive multiple of 16 bytes below 2^40";
  if (!heads || !batch)
    return "strides of heads and batch must be 0 or positive multiples of 16 bytes below 2^40";
  return nullptr;
}

cudaError_t encode_tensor_map(TileSource& source, const RowTensor& tensor, const TensorExtent& extent,
                              int box_rows) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  if (encode == nullptr) return cudaErrorSymbolNotFound;
  static_assert(sizeof(CUtensorMap) == sizeof(ptx::TensorMap));
  // The strides of a dimension of size 1 are free, but must be valid.
  const auto bytes_of = [](int64_t size, int64_t stride) {
    return static_cast<cuuint64_t>(size > 1 ? stride * kElementBytes : kStrideBytes);
  };
  source.head_step = extent.heads > 1 && tensor.head_stride != 0;
  source.batch_step = extent.batch > 1 && tensor.batch_stride != 0;
  const int64_t rows = extent.rows > 0 ? extent.rows : 1;
  const int64_t heads = source.head_step ? extent.heads : 1;
  const int64_t batch = source.batch_step ? extent.batch : 1;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(extent.head_dim), static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[3] = {bytes_of(rows, tensor.row_stride), bytes_of(heads, tensor.head_stride),
                                 bytes_of(batch, tensor.batch_stride)};
  const cuuint32_t box[4] = {tile::kPanelColumns, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t every[4] = {1, 1, 1, 1};
  // A map of no rows is never read through, but must be valid, and its data may be null.
  alignas(16) static char nothing[16];
  void* data = extent.rows > 0 ? tensor.data : nothing;
  CUtensorMap map;
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, data, sizes, strides, box, every,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) return cudaErrorInvalidValue;
  std::memcpy(&source.map, &map, sizeof(map));
  return cudaSuccess;
}

}  // namespace tilewise::sm90
