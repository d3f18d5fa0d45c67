// One wgmma of a rate measurement: D[64, 128] += A[64, 16] B[16, 128] in bf16, both operands in shared
// memory, k innermost, 128-byte swizzle. `descriptor` of an operand at a 1024-byte aligned shared address.
#ifndef TILEWISE_CUDA_PTX_WGMMA_BURST_CUH_
#define TILEWISE_CUDA_PTX_WGMMA_BURST_CUH_

#include <cstdint>

namespace tilewise::ptx {

__device__ __forceinline__ uint64_t burst_descriptor(const void* shared) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return (uint64_t{1} << 62) | (uint64_t{64} << 32) | (uint64_t{1} << 16) | ((address & 0x3ffffu) >> 4);
}

__device__ __forceinline__ void burst_fence() {
  asm volatile("fence.proxy.async.shared::cta;\nwgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void burst_wait() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

__device__ __forceinline__ void burst_product(float (&d)[64], uint64_t a, uint64_t b) {
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, "
      "0, 0;"
      : D16(0), D16(16), D16(32), D16(48)
      : "l"(a), "l"(b));
#undef D16
#undef D4
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_WGMMA_BURST_CUH_
