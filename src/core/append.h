// AppendParams: what appending rows to a cache receives, on any device. Checked by api/append.cpp.
#ifndef TILEWISE_CORE_APPEND_H_
#define TILEWISE_CORE_APPEND_H_

#include "core/cache.h"

namespace tilewise {

struct AppendParams {
  int64_t batch = 0, rows = 0, heads = 0, dim = 0, dim_v = 0;
  RowTensor k_new, v_new;
  ForwardParams cache;  // k, v and where their rows lie
  IndexTensor starts, lengths;
  RowTensor cos, sin;  // [positions, rotary_dim / 2]: row_stride alone
  int64_t positions = 0, rotary_dim = 0;
  bool interleaved = false;

  TILEWISE_HD int64_t count(int64_t b) const { return lengths.data ? read_index(lengths, b) : rows; }
  TILEWISE_HD int64_t capacity() const { return cache.seqlen_kv; }
};

// The two elements of a key that turn i takes, i < rotary_dim / 2: (i, i + rotary_dim / 2), or interleaved
// (2 i, 2 i + 1).
struct RotaryPair {
  int64_t x, y;
};
TILEWISE_HD inline RotaryPair rotary_pair(const AppendParams& a, int64_t i) {
  if (a.interleaved) return {2 * i, 2 * i + 1};
  return {i, i + a.rotary_dim / 2};
}

}  // namespace tilewise
#endif  // TILEWISE_CORE_APPEND_H_
