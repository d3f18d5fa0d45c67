// Elements of one byte to fp16, four of a word to two words, exactly.
#ifndef TILEWISE_CUDA_TILE_NARROW_H_
#define TILEWISE_CUDA_TILE_NARROW_H_

#include <cuda_fp8.h>

#include <type_traits>

#include "cuda/ptx/math.cuh"

namespace tilewise::tile {

struct TwoPairs {
  uint32_t first, second;
};

namespace detail {

// i8: 1024 + (x + 128) is an fp16 whose lowest byte is x + 128.
template <int kA, int kB>
__device__ __forceinline__ uint32_t halves_of_i8(uint32_t flipped) {
  const uint32_t word = __byte_perm(flipped, 0x64646464u, 0x4040 | kB << 8 | kA);
  const __half2 offset = __halves2half2(__ushort_as_half(0x6480), __ushort_as_half(0x6480));  // 1152
  const __half2 value = __hsub2(*reinterpret_cast<const __half2*>(&word), offset);
  return *reinterpret_cast<const uint32_t*>(&value);
}

}  // namespace detail

// Bytes (0, 1) and (2, 3) of the word, or (0, 2) and (1, 3).
template <typename T, bool kAlternate>
__device__ __forceinline__ TwoPairs widen(uint32_t word) {
  constexpr int kSecond = kAlternate ? 2 : 1, kThird = kAlternate ? 1 : 2;
  if constexpr (std::is_same_v<T, int8_t>) {
    const uint32_t flipped = word ^ 0x80808080u;
    return {detail::halves_of_i8<0, kSecond>(flipped), detail::halves_of_i8<kThird, 3>(flipped)};
  } else {
    if (kAlternate) word = __byte_perm(word, 0, 0x3120);
    return {ptx::halves_of_e4m3(word), ptx::halves_of_e4m3(word >> 16)};
  }
}

}  // namespace tilewise::tile
#endif  // TILEWISE_CUDA_TILE_NARROW_H_
