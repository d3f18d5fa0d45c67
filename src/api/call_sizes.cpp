#include "api/call_sizes.h"

#include <algorithm>

#include "core/text.h"

namespace tilewise {
namespace {

constexpr const char* kRows[4][4] = {
    {"[batch, seqlen_q, heads_q, head_dim]", "[batch, seqlen_kv, heads_kv, head_dim]",
     "[batch, seqlen_kv, heads_kv, head_dim_v]", "[batch, seqlen_q, heads_q, head_dim_v]"},
    {"[total_q, heads_q, head_dim]", "[total_kv, heads_kv, head_dim]", "[total_kv, heads_kv, head_dim_v]",
     "[total_q, heads_q, head_dim_v]"},
    {nullptr, "[num_pages, page_size, heads_kv, head_dim]", "[num_pages, page_size, heads_kv, head_dim_v]",
     nullptr},
    {nullptr, "[cache_slots, seqlen_kv, heads_kv, head_dim]",
     "[cache_slots, seqlen_kv, heads_kv, head_dim_v]", nullptr}};

}  // namespace

const char* labels_of(const tilewise_problem& p, RowKind kind) {
  if (kind == kLikeQ || kind == kLikeO) return kRows[p.packed_q ? 1 : 0][kind];
  if (p.page_size) return kRows[2][kind];
  if (p.features & TILEWISE_HAS_CACHE_BATCH_IDX) return kRows[3][kind];
  return kRows[p.packed_kv ? 1 : 0][kind];
}

bool read_sizes(TensorChecks& checks, const tilewise_problem& p, const tilewise_tensors& t, CallSizes* s) {
  if (!checks.require("q", t.q) || !checks.require("k", t.k)) return false;
  if (p.packed_q && !checks.require("cu_seqlens_q", t.cu_seqlens_q)) return false;
  if (p.packed_kv && !checks.require("cu_seqlens_kv", t.cu_seqlens_kv)) return false;
  if (!checks.rank("q", t.q, p.packed_q ? 3 : 4, labels_of(p, kLikeQ)) ||
      !checks.rank("k", t.k, p.packed_kv ? 3 : 4, labels_of(p, kLikeK)))
    return false;
  const bool slots = (p.features & TILEWISE_HAS_CACHE_BATCH_IDX) != 0;
  if (p.page_size && (!checks.require("page_table", t.page_table) ||
                      !checks.rank("page_table", t.page_table, 2, "[batch, max_pages]")))
    return false;
  if (slots && (!checks.require("cache_batch_idx", t.cache_batch_idx) ||
                !checks.rank("cache_batch_idx", t.cache_batch_idx, 1, "[batch]")))
    return false;
  const auto sequences = [&](const char* name, const tilewise_tensor& cu, int64_t* batch) {
    if (!checks.rank(name, cu, 1, "[batch + 1]")) return false;
    if (cu.shape[0] < 1)
      return checks.fail(cat(name, " is empty; accepted: batch + 1 elements, the first 0"));
    *batch = cu.shape[0] - 1;
    return true;
  };
  int64_t batch_q = t.q.shape[0], batch_kv = t.k.shape[0];
  if (p.packed_q && !sequences("cu_seqlens_q", t.cu_seqlens_q, &batch_q)) return false;
  if (p.packed_kv && !sequences("cu_seqlens_kv", t.cu_seqlens_kv, &batch_kv)) return false;
  if (p.page_size) batch_kv = t.page_table.shape[0];
  if (slots) batch_kv = t.cache_batch_idx.shape[0];
  if (batch_q != batch_kv) {
    const char* keys = p.page_size ? "page_table" : slots ? "cache_batch_idx" : "k";
    return checks.fail(cat(p.packed_q ? "cu_seqlens_q" : "q", " has batch ", batch_q, " and ",
                           p.packed_kv ? "cu_seqlens_kv" : keys, " has batch ", batch_kv,
                           "; accepted: the same"));
  }
  s->batch = batch_q;
  s->seqlen_q = p.packed_q ? p.seqlen_q : t.q.shape[1];
  s->seqlen_kv = p.packed_kv ? p.seqlen_kv : t.k.shape[1];
  s->total_q = p.packed_q ? t.q.shape[0] : 0;
  s->total_kv = p.packed_kv ? t.k.shape[0] : 0;
  s->blocks_kv = p.packed_kv ? 0 : t.k.shape[0];
  s->block_rows_kv = p.page_size ? p.page_size : s->seqlen_kv;
  if (p.page_size) {
    // A call's table may be narrower than the plan's; check_bounds refuses a wider one.
    s->max_pages = t.page_table.shape[1];
    s->seqlen_kv = s->max_pages < p.seqlen_kv / p.page_size + 1
                       ? std::min(p.seqlen_kv, s->max_pages * p.page_size)
                       : p.seqlen_kv;
  }
  return true;
}

}  // namespace tilewise
