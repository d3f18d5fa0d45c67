#include "tune/work.h"

#include <algorithm>

#include "tilewise/tensor.h"

namespace tilewise::tune {
namespace {

double bytes_of(int32_t dtype) { return bits_of(static_cast<DType>(dtype)) / 8.0; }

double pairs_for_flops(const Problem& p) {
  const bool causal_only = (p.causal || p.window_right == 0) && p.window_left < 0;
  if (causal_only && p.seqlen_q == p.seqlen_kv && p.position != TILEWISE_GIVEN)
    return 0.5 * static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_kv);
  return static_cast<double>(visible_pairs(p));
}

}  // namespace

int64_t visible_pairs(const Problem& p) {
  const int64_t right = p.causal ? 0 : p.window_right;
  const int64_t offset = p.position == TILEWISE_BOTTOM_RIGHT ? p.seqlen_kv - p.seqlen_q : 0;
  int64_t pairs = 0;
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    const int64_t position = i + offset;
    const int64_t lo = p.window_left >= 0 ? std::max<int64_t>(0, position - p.window_left) : 0;
    const int64_t hi = right >= 0 ? std::min(p.seqlen_kv, position + right + 1) : p.seqlen_kv;
    pairs += std::max<int64_t>(0, hi - lo);
  }
  return pairs;
}

double flops_of(const Problem& p) {
  const double d = static_cast<double>(p.head_dim), d_v = static_cast<double>(p.head_dim_v);
  const double a_pair = p.direction == TILEWISE_BACKWARD ? 2 * (3 * d + 2 * d_v) : 2 * (d + d_v);
  return a_pair * pairs_for_flops(p) * static_cast<double>(p.heads_q) * static_cast<double>(p.batch);
}

double ideal_bytes_of(const Problem& p) {
  const double rows_q = static_cast<double>(p.packed_q ? p.total_q : p.batch * p.seqlen_q);
  const double rows_kv = static_cast<double>(p.packed_kv ? p.total_kv : p.batch * p.seqlen_kv);
  const double heads_q = static_cast<double>(p.heads_q), heads_kv = static_cast<double>(p.heads_kv);
  const double q = rows_q * heads_q * static_cast<double>(p.head_dim);
  const double o = rows_q * heads_q * static_cast<double>(p.head_dim_v);
  const double k = rows_kv * heads_kv * static_cast<double>(p.head_dim);
  const double v = rows_kv * heads_kv * static_cast<double>(p.head_dim_v);
  const double lse = 4.0 * rows_q * heads_q;
  double bytes =
      q * bytes_of(p.dtype_q) + k * bytes_of(p.dtype_k) + v * bytes_of(p.dtype_v) + o * bytes_of(p.dtype_o);
  if (p.direction == TILEWISE_BACKWARD) {
    bytes += lse + o * bytes_of(p.dtype_dout) + q * bytes_of(p.dtype_dq) + k * bytes_of(p.dtype_dk) +
             v * bytes_of(p.dtype_dv);
  } else if (p.has(TILEWISE_HAS_LSE)) {
    bytes += lse;
  }
  return bytes;
}

}  // namespace tilewise::tune
