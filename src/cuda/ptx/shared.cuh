// Shared-memory addresses as the instructions of this folder take them.
#ifndef TILEWISE_CUDA_PTX_SHARED_H_
#define TILEWISE_CUDA_PTX_SHARED_H_

#include <cstdint>

namespace tilewise::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_SHARED_H_
