#include "cuda/sm90/forward_rows.h"

#include "cuda/sm90/tensor_map.h"

namespace tilewise::sm90 {

const char* forward_refuses(const ForwardRow& row, const ForwardParams& p) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (p.q.dtype != row.dtype || p.k.dtype != row.dtype || p.v.dtype != row.dtype)
    return "q, k and v of its dtype";
  if (p.o.dtype != row.dtype && p.o.dtype != DType::f32) return "o of its dtype or f32";
  if (p.head_dim > row.head_dim || p.head_dim_v > row.head_dim_v) return "head_dim up to its own";
  if (p.bias.data || p.mask.data || p.dropout_threshold)
    return "no bias, mask or dropout (score class simple)";
  if (p.kv_ranges.data || p.segment_ids_q.data || p.segment_ids_kv.data)
    return "no kv_ranges and no segment ids";
  if (p.seqlen_q > kMost || p.seqlen_kv > kMost || p.total_q > kMost || p.total_kv > kMost)
    return "at most 2^30 rows";
  if (p.batch * p.heads_q * ((p.seqlen_q + row.tile_m - 1) / row.tile_m) > kMost)
    return "at most 2^30 query tiles";
  const int64_t rows_q = p.cu_seqlens_q.data ? p.total_q : p.seqlen_q;
  const int64_t rows_kv = p.cu_seqlens_kv.data ? p.total_kv : p.seqlen_kv;
  if (const char* rule = tensor_map_refuses(p.q, {p.batch, rows_q, p.heads_q, p.head_dim})) return rule;
  if (const char* rule = tensor_map_refuses(p.k, {p.batch, rows_kv, p.heads_kv, p.head_dim})) return rule;
  return tensor_map_refuses(p.v, {p.batch, rows_kv, p.heads_kv, p.head_dim_v});
}

}  // namespace tilewise::sm90
