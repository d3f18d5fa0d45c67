// Where the rows of a cache of keys lie: in the sequence's own place, in a slot found by index, or in pages.
// Contiguous, packed and paged keys differ in nothing else. Indices are clamped, as lengths are; the host
// refuses bad ones before (api/values.cpp).
#ifndef TILEWISE_CORE_CACHE_H_
#define TILEWISE_CORE_CACHE_H_

#include "core/mask.h"
#include "tilewise/problem.h"

namespace tilewise {

inline bool is_cache(const Problem& p) { return p.page_size > 0 || p.has(TILEWISE_HAS_CACHE_BATCH_IDX); }

// Of k and v: the sequence's place on their first dimension, where they are not paged.
TILEWISE_HD inline int64_t cache_slot(const ForwardParams& p, int64_t b) {
  return p.cache_batch_idx.data ? clamp_index(read_index(p.cache_batch_idx, b), 0, p.cache_slots - 1) : b;
}

// Key j of sequence b and the ones behind it that lie at one stride.
struct KeyRun {
  int64_t block = 0, row = 0;  // indices on the first two dimensions of k and v
  int64_t count = 0;           // rows from j on that follow at row_stride, at most what was asked for
};

TILEWISE_HD inline KeyRun key_run(const ForwardParams& p, const Sequence& s, int64_t b, int64_t j,
                                  int64_t count) {
  if (!p.page_size) return {cache_slot(p, b), s.kv_begin + j, count};
  const int64_t entry = j / p.page_size, row = j - entry * p.page_size, left = p.page_size - row;
  return {clamp_index(read_index(p.page_table, b, entry), 0, p.num_pages - 1), row,
          left < count ? left : count};
}

// The group of rows of its block whose scale the first key of a run takes.
TILEWISE_HD inline int64_t scale_group(const ForwardParams& p, const Sequence& s, const KeyRun& run) {
  return p.scale_rows ? (run.row - s.kv_begin) / p.scale_rows : 0;
}

}  // namespace tilewise
#endif  // TILEWISE_CORE_CACHE_H_
