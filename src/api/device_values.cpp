#include "api/device_values.h"

namespace tilewise {

Status HostIndices::fetch(IndexTensor& t, int64_t batch, int64_t rows, int64_t inner) {
  if (!t.data || batch <= 0 || rows <= 0 || inner <= 0) return {};
  int64_t low = 0, high = 0;
  for (const int64_t reach :
       {(batch - 1) * t.batch_stride, (rows - 1) * t.row_stride, (inner - 1) * t.inner_stride})
    (reach < 0 ? low : high) += reach;
  const int64_t size = bits_of(t.dtype) / 8;
  std::vector<std::byte>& copy = copies_.emplace_back(static_cast<size_t>((high - low + 1) * size));
  if (Status s = copy_(copy.data(), static_cast<const std::byte*>(t.data) + low * size,
                       static_cast<int64_t>(copy.size()));
      !s.ok())
    return s;
  t.data = copy.data() - low * size;
  return {};
}

Status HostIndices::fetch(ForwardParams& p) {
  const bool packed = p.cu_seqlens_q.data != nullptr;
  const struct {
    IndexTensor& tensor;
    int64_t batch, rows, inner;
  } all[] = {{p.q_lengths, p.batch, 1, 1},
             {p.kv_lengths, p.batch, 1, 1},
             {p.kv_starts, p.batch, 1, 1},
             {p.q_offset, p.batch, 1, 1},
             {p.cache_batch_idx, p.batch, 1, 1},
             {p.cu_seqlens_q, p.batch + 1, 1, 1},
             {p.cu_seqlens_kv, p.batch + 1, 1, 1},
             {p.page_table, p.batch, p.page_size ? (p.seqlen_kv + p.page_size - 1) / p.page_size : 0, 1},
             {p.kv_ranges, packed ? 1 : p.batch, packed ? p.total_q : p.seqlen_q, 2}};
  for (const auto& t : all) {
    if (Status s = fetch(t.tensor, t.batch, t.rows, t.inner); !s.ok()) return s;
  }
  return {};
}

Status HostIndices::fetch(AppendParams& a) {
  a.cache.batch = a.batch;
  if (Status s = fetch(a.starts, a.batch); !s.ok()) return s;
  if (Status s = fetch(a.lengths, a.batch); !s.ok()) return s;
  return fetch(a.cache);
}

}  // namespace tilewise
