#include "cpu/row_mask.h"

#include <algorithm>
#include <bit>

#include "core/element.h"
#include "core/mask.h"
#include "core/softmax.h"

namespace tilewise::cpu {
namespace {

// Bits [at, at + count), count <= 64, lowest first; no byte without one of them is read.
uint64_t read_bits(const uint8_t* bytes, int64_t at, int count) {
  uint64_t bits = 0;
  int have = 0;
  for (const uint8_t* byte = bytes + (at >> 3); have < count; ++byte) {
    const int skip = have == 0 ? static_cast<int>(at & 7) : 0;
    bits |= (uint64_t{*byte} >> skip) << have;
    have += 8 - skip;
  }
  return count < 64 ? bits & ((uint64_t{1} << count) - 1) : bits;
}

// True where some key is hidden.
bool hide_by_mask(float* add, const ForwardParams& p, int64_t b, int64_t head, int64_t row, int64_t key0,
                  int from, int to) {
  const ScoreTensor& mask = p.mask;
  bool hides = false;
  if (mask.dtype != DType::bit || mask.key_stride != 1) {
    for (int j = from; j < to; ++j) {
      if (mask_allows(mask, b, head, row, key0 + j)) continue;
      add[j] = kNegativeInfinity;
      hides = true;
    }
    return hides;
  }
  const int64_t at = b * mask.batch_stride + head * mask.head_stride + row * mask.row_stride + key0;
  for (int j = from; j < to; j += 64) {
    const int count = std::min(64, to - j);
    const uint64_t all = count < 64 ? (uint64_t{1} << count) - 1 : ~uint64_t{0};
    uint64_t hidden = all & ~read_bits(static_cast<const uint8_t*>(mask.data), at + j, count);
    hides |= hidden != 0;
    for (; hidden != 0; hidden &= hidden - 1) add[j + std::countr_zero(hidden)] = kNegativeInfinity;
  }
  return hides;
}

}  // namespace

bool load_row_bias_and_mask(float* add, const ForwardParams& p, int64_t b, int64_t head, int64_t row,
                            int64_t key0, int from, int to) {
  if (p.bias.data) {
    const ScoreTensor& bias = p.bias;
    const int64_t at = b * bias.batch_stride + head * bias.head_stride + row * bias.row_stride;
    for (int j = from; j < to; ++j)
      add[j] = load_element(bias.data, bias.dtype, at + (key0 + j) * bias.key_stride);
  } else {
    std::fill(add + from, add + to, 0.0f);
  }
  const bool hides = p.mask.data && hide_by_mask(add, p, b, head, row, key0, from, to);
  return hides || p.bias.data;
}

}  // namespace tilewise::cpu
