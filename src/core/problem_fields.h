// The fields of a Problem, listed once: printing, comparing and hashing walk this list, so none forgets one.
#ifndef TILEWISE_CORE_PROBLEM_FIELDS_H_
#define TILEWISE_CORE_PROBLEM_FIELDS_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "tilewise/c_problem.h"

namespace tilewise {

// visit(name, field) for every scalar field; `P` is tilewise_problem or const tilewise_problem.
template <typename P, typename Visit>
void visit_fields(P& p, Visit&& visit) {
  visit("direction", p.direction);
  visit("batch", p.batch);
  visit("seqlen_q", p.seqlen_q);
  visit("seqlen_kv", p.seqlen_kv);
  visit("total_q", p.total_q);
  visit("total_kv", p.total_kv);
  visit("heads_q", p.heads_q);
  visit("heads_kv", p.heads_kv);
  visit("head_dim", p.head_dim);
  visit("head_dim_v", p.head_dim_v);
  visit("dtype_q", p.dtype_q);
  visit("dtype_k", p.dtype_k);
  visit("dtype_v", p.dtype_v);
  visit("dtype_o", p.dtype_o);
  visit("dtype_dout", p.dtype_dout);
  visit("dtype_dq", p.dtype_dq);
  visit("dtype_dk", p.dtype_dk);
  visit("dtype_dv", p.dtype_dv);
  visit("dtype_bias", p.dtype_bias);
  visit("dtype_mask", p.dtype_mask);
  visit("dtype_dbias", p.dtype_dbias);
  visit("packed_q", p.packed_q);
  visit("packed_kv", p.packed_kv);
  visit("page_size", p.page_size);
  visit("max_pages", p.max_pages);
  visit("num_pages", p.num_pages);
  visit("cache_slots", p.cache_slots);
  visit("scale_rows", p.scale_rows);
  visit("features", p.features);
  for (int i = 0; i < 4; ++i) visit("bias_shape", p.bias_shape[i]);
  for (int i = 0; i < 4; ++i) visit("mask_shape", p.mask_shape[i]);
  visit("alibi_per_batch", p.alibi_per_batch);
  visit("causal", p.causal);
  visit("window_left", p.window_left);
  visit("window_right", p.window_right);
  visit("position", p.position);
  visit("softmax_scale", p.softmax_scale);
  visit("softcap", p.softcap);
  visit("dropout_p", p.dropout_p);
  visit("wants", p.wants);
  visit("accumulate", p.accumulate);
  visit("deterministic", p.deterministic);
  visit("batch_invariant", p.batch_invariant);
  visit("alignment", p.alignment);
}

// A field's bits: NaN equals NaN (the default scale), and padding does not count.
template <typename T>
uint64_t field_bits(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return value != value ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
  } else {
    return static_cast<uint64_t>(value);
  }
}

inline bool problem_equal(const tilewise_problem& a, const tilewise_problem& b) {
  uint64_t bits[64];
  int n = 0, i = 0;
  visit_fields(a, [&](const char*, auto value) { bits[n++] = field_bits(value); });
  bool equal = true;
  visit_fields(b, [&](const char*, auto value) { equal &= bits[i++] == field_bits(value); });
  return equal;
}

inline uint64_t problem_hash(const tilewise_problem& p) {
  uint64_t hash = 0x9e3779b97f4a7c15ull;
  visit_fields(p, [&](const char*, auto value) {
    hash = (hash ^ field_bits(value)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  });
  return hash;
}

// Whether sums of backward have one order: what `batch_invariant` asks for, and so more than `deterministic`.
inline bool orders_sums(const tilewise_problem& p) { return p.deterministic != 0 || p.batch_invariant != 0; }

}  // namespace tilewise
#endif  // TILEWISE_CORE_PROBLEM_FIELDS_H_
