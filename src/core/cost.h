// What a problem costs whoever computes it: visible pairs, operations, bytes. Kernels' estimates and the
// reports of the command line stand on these. Lengths are data, so every figure is for the problem's bounds.
#ifndef TILEWISE_CORE_COST_H_
#define TILEWISE_CORE_COST_H_

#include <algorithm>
#include <cstdint>

#include "tilewise/problem.h"

namespace tilewise {

// Sequences that can be as long as the bounds: batch, or fewer where the packed total does not allow it.
inline double full_sequences(const Problem& p) {
  double n = static_cast<double>(p.batch);
  if (p.packed_q && p.seqlen_q > 0)
    n = std::min(n, static_cast<double>(p.total_q) / static_cast<double>(p.seqlen_q));
  if (p.packed_kv && p.seqlen_kv > 0)
    n = std::min(n, static_cast<double>(p.total_kv) / static_cast<double>(p.seqlen_kv));
  return n;
}

// Sum over i in [0, rows) of clamp(i + first, 0, limit): keys below a diagonal.
inline double keys_below_diagonal(double rows, double first, double limit) {
  const double from = std::clamp(-first, 0.0, rows);        // rows before it see nothing
  const double to = std::clamp(limit - first, from, rows);  // rows from it on see all
  return (to - from) * (from + to - 1.0 + 2.0 * first) * 0.5 + (rows - to) * limit;
}

// Pairs (query, key) inside the band, one head of one full sequence; a position given with the call counts as
// bottom-right.
inline double visible_pairs_per_head(const Problem& p) {
  const double rows = static_cast<double>(p.seqlen_q), keys = static_cast<double>(p.seqlen_kv);
  const double offset = p.position == TILEWISE_TOP_LEFT ? 0.0 : keys - rows;
  const double right = p.causal ? 0.0 : static_cast<double>(p.window_right);
  const double left = static_cast<double>(p.window_left);
  const double below_right = right >= 0 ? keys_below_diagonal(rows, offset + right + 1.0, keys) : rows * keys;
  const double below_left = left >= 0 ? keys_below_diagonal(rows, offset - left, keys) : 0.0;
  return std::max(0.0, below_right - below_left);
}

inline double visible_pairs(const Problem& p) {
  return full_sequences(p) * static_cast<double>(p.heads_q) * visible_pairs_per_head(p);
}

// A product of d multiplies and adds counts 2 d. Forward: q k and p v. Backward: those two again as s and dp
// (v dout), then dv, dk, dq.
inline double operations(const Problem& p) {
  const double d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.head_dim_v);
  const double pairs = visible_pairs(p);
  return p.direction == TILEWISE_BACKWARD ? pairs * (6.0 * d + 4.0 * dv) : pairs * (2.0 * d + 2.0 * dv);
}

inline double element_bytes(int32_t dtype) { return bits_of(static_cast<DType>(dtype)) / 8.0; }

// Each tensor read or written once: the least that any kernel moves.
inline double ideal_bytes(const Problem& p) {
  const double rows_q = static_cast<double>(p.packed_q ? p.total_q : p.batch * p.seqlen_q);
  const double rows_kv = static_cast<double>(p.packed_kv ? p.total_kv : p.batch * p.seqlen_kv);
  const double hq = static_cast<double>(p.heads_q), hkv = static_cast<double>(p.heads_kv);
  const double d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.head_dim_v);
  double bytes = rows_q * hq * (d * element_bytes(p.dtype_q) + dv * element_bytes(p.dtype_o)) +
                 rows_kv * hkv * (d * element_bytes(p.dtype_k) + dv * element_bytes(p.dtype_v));
  if (p.direction == TILEWISE_BACKWARD || (p.features & TILEWISE_HAS_LSE)) bytes += rows_q * hq * 4.0;
  auto product = [](const int64_t* shape) {
    double n = 1.0;
    for (int i = 0; i < 4; ++i) n *= static_cast<double>(shape[i]);
    return n;
  };
  if (p.features & TILEWISE_HAS_BIAS) bytes += product(p.bias_shape) * element_bytes(p.dtype_bias);
  if (p.features & TILEWISE_HAS_MASK) bytes += product(p.mask_shape) * element_bytes(p.dtype_mask);
  if (p.direction == TILEWISE_BACKWARD) {
    bytes += rows_q * hq * dv * element_bytes(p.dtype_dout);
    if (p.wants & TILEWISE_WANT_DQ) bytes += rows_q * hq * d * element_bytes(p.dtype_dq);
    if (p.wants & TILEWISE_WANT_DK) bytes += rows_kv * hkv * d * element_bytes(p.dtype_dk);
    if (p.wants & TILEWISE_WANT_DV) bytes += rows_kv * hkv * dv * element_bytes(p.dtype_dv);
    if (p.wants & TILEWISE_WANT_DBIAS) bytes += product(p.bias_shape) * element_bytes(p.dtype_dbias);
  }
  return bytes;
}

// Score matrices that the three-step form writes and reads again, over all heads (fp32): S, P, and backward
// dP, dS.
inline double score_matrix_bytes(const Problem& p) {
  const double pairs = full_sequences(p) * static_cast<double>(p.heads_q) * static_cast<double>(p.seqlen_q) *
                       static_cast<double>(p.seqlen_kv);
  return pairs * 4.0 * (p.direction == TILEWISE_BACKWARD ? 4.0 : 2.0);
}

}  // namespace tilewise
#endif  // TILEWISE_CORE_COST_H_
