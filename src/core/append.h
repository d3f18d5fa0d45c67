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
  // Where not null, new rows' scales are written here, beside cache.k_scales and v_scales at the same
  // strides.
  float *k_scales_out = nullptr, *v_scales_out = nullptr;

  TILEWISE_HD int64_t count(int64_t b) const { return lengths.data ? read_index(lengths, b) : rows; }
  TILEWISE_HD int64_t capacity() const { return cache.seqlen_kv; }
  // Whether the cache has a row for the sequence's key `position`. Clamped, a page or slot that is not there
  // would be another sequence's, and writing to it would change that one's keys.
  TILEWISE_HD bool has_place(int64_t b, int64_t position) const {
    if (position < 0 || position >= capacity()) return false;
    if (cache.page_size) {
      const int64_t page = read_index(cache.page_table, b, position / cache.page_size);
      return page >= 0 && page < cache.num_pages;
    }
    if (!cache.cache_batch_idx.data) return true;
    const int64_t slot = read_index(cache.cache_batch_idx, b);
    return slot >= 0 && slot < cache.cache_slots;
  }
};

// What the largest magnitude of a row becomes where its own scale is made from it.
TILEWISE_HD inline float largest_stored(DType dtype) { return dtype == DType::i8 ? 127.0f : 448.0f; }

// What a row's elements are multiplied by before the store to a quantised dtype.
TILEWISE_HD inline float inverse_of(float scale) { return scale != 0.0f ? 1.0f / scale : 0.0f; }

// Where element d < rotary_dim of a key stands: its pair is turned by angle `turn`, x being its first
// element, y its second: (i, i + rotary_dim / 2), or interleaved (2 i, 2 i + 1).
struct RotaryPair {
  int64_t turn, x, y;
};
TILEWISE_HD inline RotaryPair rotary_pair(const AppendParams& a, int64_t d) {
  const int64_t half = a.rotary_dim / 2;
  if (a.interleaved) return {d / 2, d & ~int64_t{1}, d | 1};
  const int64_t turn = d < half ? d : d - half;
  return {turn, turn, turn + half};
}

}  // namespace tilewise
#endif  // TILEWISE_CORE_APPEND_H_
