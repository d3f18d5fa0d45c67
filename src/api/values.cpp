// Looks at the values of lengths and offsets in host memory. Kernels clamp whatever they find; these checks
// say instead what is wrong.
#include <algorithm>

#include "api/bind.h"
#include "core/cache.h"
#include "core/text.h"

namespace tilewise {
namespace {

Status wrong(std::string sentence) { return {Code::invalid, std::move(sentence)}; }

// The one mistake that clamping cannot mend: rows past the planned length would be lost.
Status check_longest(const char* name, const char* bound_name, const IndexTensor& cu, int64_t batch,
                     int64_t total, int64_t bound) {
  for (int64_t b = 0; cu.data && b < batch; ++b) {
    const int64_t begin = clamp_index(read_index(cu, b), 0, total);
    const int64_t length = clamp_index(read_index(cu, b + 1), begin, total) - begin;
    if (length > bound)
      return wrong(
          cat(name, " gives sequence ", b, " ", length, " rows; accepted: up to ", bound_name, " ", bound));
  }
  return {};
}

Status check_offsets(const char* name, const char* total_name, const IndexTensor& cu, int64_t batch,
                     int64_t total) {
  if (!cu.data) return {};
  if (read_index(cu, 0) != 0) return wrong(cat(name, "[0] is ", read_index(cu, 0), "; accepted: 0"));
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t begin = read_index(cu, b), end = read_index(cu, b + 1);
    if (end < begin)
      return wrong(
          cat(name, "[", b + 1, "] is ", end, " after ", begin, "; accepted: offsets that never fall"));
  }
  if (read_index(cu, batch) > total)
    return wrong(
        cat(name, "[", batch, "] is ", read_index(cu, batch), "; accepted: up to ", total_name, " ", total));
  return {};
}

Status check_range(const char* name, const IndexTensor& t, int64_t b, int64_t low, int64_t high,
                   const char* high_name) {
  if (!t.data) return {};
  const int64_t value = read_index(t, b);
  if (value >= low && value <= high) return {};
  return wrong(cat(name, "[", b, "] is ", value, "; accepted: ", low, " to ", high, ", ", high_name));
}

Status check_lengths(const ForwardParams& p) {
  ForwardParams bare = p;  // the sequences as the tensors hold them
  bare.q_lengths.data = bare.kv_lengths.data = bare.kv_starts.data = bare.q_offset.data = nullptr;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(bare, b);
    if (Status w = check_range("q_lengths", p.q_lengths, b, 0, s.rows_q, "the rows of q"); !w.ok()) return w;
    if (Status w = check_range("kv_lengths", p.kv_lengths, b, 0, s.rows_kv, "the rows of k"); !w.ok())
      return w;
    const int64_t last = p.kv_lengths.data ? read_index(p.kv_lengths, b) : s.rows_kv;
    if (Status w = check_range("kv_starts", p.kv_starts, b, 0, last, "the keys of the sequence"); !w.ok())
      return w;
  }
  return {};
}

// A page or slot that is not there, or a key past the table, would be another sequence's.
Status check_cache(const ForwardParams& p) {
  for (int64_t b = 0; b < p.batch; ++b) {
    if (Status w =
            check_range("cache_batch_idx", p.cache_batch_idx, b, 0, p.cache_slots - 1, "the slots of k");
        !w.ok())
      return w;
    if (!p.page_size) continue;
    const char* rows = "the rows of its pages";
    if (Status w = check_range("kv_lengths", p.kv_lengths, b, 0, p.seqlen_kv, rows); !w.ok()) return w;
    const int64_t last = p.kv_lengths.data ? read_index(p.kv_lengths, b) : p.seqlen_kv;
    if (Status w = check_range("kv_starts", p.kv_starts, b, 0, last, "the keys of the sequence"); !w.ok())
      return w;
    // Pages that no window reaches may have been given away.
    const Sequence s = sequence_of(p, b);
    if (s.len_q == 0) continue;  // no key is read
    int64_t lo = s.kv_first, hi = s.kv_last;
    if (p.window_left >= 0) lo = std::max(lo, s.q_offset - p.window_left);
    if (p.window_right >= 0) hi = std::min(hi, s.q_offset + s.len_q + p.window_right);
    for (int64_t entry = lo / p.page_size; lo < hi && entry * p.page_size < hi; ++entry) {
      const int64_t page = read_index(p.page_table, b, entry);
      if (page < 0 || page >= p.num_pages)
        return wrong(cat("page_table of sequence ", b, " entry ", entry, " is ", page, "; accepted: 0 to ",
                         p.num_pages - 1, ", the pages of k, for every page with a key that is read"));
    }
  }
  return {};
}

Status check_ranges(const ForwardParams& p) {
  if (!p.kv_ranges.data) return {};
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, b);
    for (int64_t i = 0; i < s.len_q; ++i) {
      const int64_t first = read_row_index(p.kv_ranges, b, s.q_begin, i, 0);
      const int64_t last = read_row_index(p.kv_ranges, b, s.q_begin, i, 1);
      if (first < 0 || last < first || last > s.rows_kv) {
        return wrong(cat("kv_ranges of sequence ", b, " row ", i, " is [", first, ", ", last,
                         "); accepted: 0 <= first <= last <= ", s.rows_kv, ", the rows of k"));
      }
    }
  }
  return {};
}

}  // namespace

Status check_values(const tilewise_problem& problem, const ForwardParams& p, bool all) {
  if (all) {
    if (Status s = check_offsets("cu_seqlens_q", "total_q", p.cu_seqlens_q, p.batch, p.total_q); !s.ok())
      return s;
    if (Status s = check_offsets("cu_seqlens_kv", "total_kv", p.cu_seqlens_kv, p.batch, p.total_kv); !s.ok())
      return s;
  }
  if (Status s =
          check_longest("cu_seqlens_q", "seqlen_q", p.cu_seqlens_q, p.batch, p.total_q, problem.seqlen_q);
      !s.ok())
    return s;
  if (Status s = check_longest("cu_seqlens_kv", "seqlen_kv", p.cu_seqlens_kv, p.batch, p.total_kv,
                               problem.seqlen_kv);
      !s.ok())
    return s;
  if (Status s = check_cache(p); !s.ok()) return s;
  if (!all) return {};
  if (Status s = check_lengths(p); !s.ok()) return s;
  return check_ranges(p);
}

}  // namespace tilewise
