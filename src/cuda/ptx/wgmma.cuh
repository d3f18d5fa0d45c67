// wgmma: D[64, N] (+)= A[64, 16] B[16, N], fp32 accumulators, bf16 or fp16 operands.
//
//   wgmma_ss   A and B in shared memory, both with k innermost ("K-major")
//   wgmma_rs   A in registers, B in shared memory with n innermost ("MN-major")
//   wgmma_tt   A and B in shared memory, with m and n innermost
//
// Lane l of warp w holds rows 16 w + l / 4 and + 8, columns 8 j + 2 (l % 4) + {0, 1}: d[4 j + 2 (row half) +
// column]. The A fragment in registers is the accumulator's layout, rounded, for 16 columns at a time.
#ifndef TILEWISE_CUDA_PTX_WGMMA_H_
#define TILEWISE_CUDA_PTX_WGMMA_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace tilewise::ptx {

// Before the first wgmma after registers that it reads or adds to were written by other instructions.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most kPending groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of an accumulator across a wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

template <int kN, typename T>
struct Wgmma;

#define TILEWISE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TILEWISE_D8(i) TILEWISE_D4(i), TILEWISE_D4(i + 4)
#define TILEWISE_D16(i) TILEWISE_D8(i), TILEWISE_D8(i + 8)
#define TILEWISE_D32(i) TILEWISE_D16(i), TILEWISE_D16(i + 16)

#define TILEWISE_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TILEWISE_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TILEWISE_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TILEWISE_R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TILEWISE_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TILEWISE_R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TILEWISE_R48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TILEWISE_R56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TILEWISE_R64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TILEWISE_R72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TILEWISE_R80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TILEWISE_R88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TILEWISE_R96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TILEWISE_R104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TILEWISE_R112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TILEWISE_R120 ", %120, %121, %122, %123, %124, %125, %126, %127"

// N: columns. TYPE: operand type in the instruction. D, R: the accumulators. S: the operands behind them, as
// numbers, because every shape has its own count of accumulators.
#define TILEWISE_WGMMA(N, T, TYPE, D, R, S0, S1, S2, S3, S4, S5)                                           \
  template <>                                                                                              \
  struct Wgmma<N, T> {                                                                                     \
    static __device__ __forceinline__ void tt(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " S2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N     \
                   "k16.f32." TYPE "." TYPE " {" R "}, " S0 ", " S1 ", p, 1, 1, 1, 1;\n}\n"                \
                   : D                                                                                     \
                   : "l"(a), "l"(b), "r"(add));                                                            \
    }                                                                                                      \
    static __device__ __forceinline__ void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " S2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N     \
                   "k16.f32." TYPE "." TYPE " {" R "}, " S0 ", " S1 ", p, 1, 1, 0, 0;\n}\n"                \
                   : D                                                                                     \
                   : "l"(a), "l"(b), "r"(add));                                                            \
    }                                                                                                      \
    static __device__ __forceinline__ void rs(float (&d)[N / 2], const uint32_t* a, uint64_t b, int add) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " S5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N     \
                   "k16.f32." TYPE "." TYPE " {" R "}, {" S0 ", " S1 ", " S2 ", " S3 "}, " S4              \
                   ", p, 1, 1, 1;\n}\n"                                                                    \
                   : D                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                        \
    }                                                                                                      \
  };
#define TILEWISE_WGMMA_TYPES(N, D, R, ...)                                   \
  TILEWISE_WGMMA(N, __nv_bfloat16, "bf16", TILEWISE_LIST(D), R, __VA_ARGS__) \
  TILEWISE_WGMMA(N, __half, "f16", TILEWISE_LIST(D), R, __VA_ARGS__)
#define TILEWISE_LIST(...) __VA_ARGS__

TILEWISE_WGMMA_TYPES(32, TILEWISE_LIST(TILEWISE_D16(0)), TILEWISE_R0 TILEWISE_R8, "%16", "%17", "%18", "%19",
                     "%20", "%21")
TILEWISE_WGMMA_TYPES(64, TILEWISE_LIST(TILEWISE_D32(0)), TILEWISE_R0 TILEWISE_R8 TILEWISE_R16 TILEWISE_R24,
                     "%32", "%33", "%34", "%35", "%36", "%37")
TILEWISE_WGMMA_TYPES(80, TILEWISE_LIST(TILEWISE_D32(0), TILEWISE_D8(32)),
                     TILEWISE_R0 TILEWISE_R8 TILEWISE_R16 TILEWISE_R24 TILEWISE_R32, "%40", "%41", "%42",
                     "%43", "%44", "%45")
TILEWISE_WGMMA_TYPES(96, TILEWISE_LIST(TILEWISE_D32(0), TILEWISE_D16(32)),
                     TILEWISE_R0 TILEWISE_R8 TILEWISE_R16 TILEWISE_R24 TILEWISE_R32 TILEWISE_R40, "%48",
                     "%49", "%50", "%51", "%52", "%53")
TILEWISE_WGMMA_TYPES(112, TILEWISE_LIST(TILEWISE_D32(0), TILEWISE_D16(32), TILEWISE_D8(48)),
                     TILEWISE_R0 TILEWISE_R8 TILEWISE_R16 TILEWISE_R24 TILEWISE_R32 TILEWISE_R40 TILEWISE_R48,
                     "%56", "%57", "%58", "%59", "%60", "%61")
TILEWISE_WGMMA_TYPES(128, TILEWISE_LIST(TILEWISE_D32(0), TILEWISE_D32(32)),
                     TILEWISE_R0 TILEWISE_R8 TILEWISE_R16 TILEWISE_R24 TILEWISE_R32 TILEWISE_R40 TILEWISE_R48
                         TILEWISE_R56,
                     "%64", "%65", "%66", "%67", "%68", "%69")
TILEWISE_WGMMA_TYPES(160, TILEWISE_LIST(TILEWISE_D32(0), TILEWISE_D32(32), TILEWISE_D16(64)),
                     TILEWISE_R0 TILEWISE_R8 TILEWISE_R16 TILEWISE_R24 TILEWISE_R32 TILEWISE_R40 TILEWISE_R48
                         TILEWISE_R56 TILEWISE_R64 TILEWISE_R72,
                     "%80", "%81", "%82", "%83", "%84", "%85")
TILEWISE_WGMMA_TYPES(176, TILEWISE_LIST(TILEWISE_D32(0), TILEWISE_D32(32), TILEWISE_D16(64), TILEWISE_D8(80)),
                     TILEWISE_R0 TILEWISE_R8 TILEWISE_R16 TILEWISE_R24 TILEWISE_R32 TILEWISE_R40 TILEWISE_R48
                         TILEWISE_R56 TILEWISE_R64 TILEWISE_R72 TILEWISE_R80,
                     "%88", "%89", "%90", "%91", "%92", "%93")
TILEWISE_WGMMA_TYPES(192, TILEWISE_LIST(TILEWISE_D32(0), TILEWISE_D32(32), TILEWISE_D32(64)),
                     TILEWISE_R0 TILEWISE_R8 TILEWISE_R16 TILEWISE_R24 TILEWISE_R32 TILEWISE_R40 TILEWISE_R48
                         TILEWISE_R56 TILEWISE_R64 TILEWISE_R72 TILEWISE_R80 TILEWISE_R88,
                     "%96", "%97", "%98", "%99", "%100", "%101")
TILEWISE_WGMMA_TYPES(256,
                     TILEWISE_LIST(TILEWISE_D32(0), TILEWISE_D32(32), TILEWISE_D32(64), TILEWISE_D32(96)),
                     TILEWISE_R0 TILEWISE_R8 TILEWISE_R16 TILEWISE_R24 TILEWISE_R32 TILEWISE_R40 TILEWISE_R48
                         TILEWISE_R56 TILEWISE_R64 TILEWISE_R72 TILEWISE_R80 TILEWISE_R88 TILEWISE_R96
                             TILEWISE_R104 TILEWISE_R112 TILEWISE_R120,
                     "%128", "%129", "%130", "%131", "%132", "%133")

#undef TILEWISE_LIST
#undef TILEWISE_WGMMA_TYPES
#undef TILEWISE_WGMMA
#undef TILEWISE_R0
#undef TILEWISE_R8
#undef TILEWISE_R16
#undef TILEWISE_R24
#undef TILEWISE_R32
#undef TILEWISE_R40
#undef TILEWISE_R48
#undef TILEWISE_R56
#undef TILEWISE_R64
#undef TILEWISE_R72
#undef TILEWISE_R80
#undef TILEWISE_R88
#undef TILEWISE_R96
#undef TILEWISE_R104
#undef TILEWISE_R112
#undef TILEWISE_R120
#undef TILEWISE_D32
#undef TILEWISE_D16
#undef TILEWISE_D8
#undef TILEWISE_D4

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_WGMMA_H_
