// What a problem is, read off a call's tensors.
#include <algorithm>

#include "api/bind.h"
#include "api/border.h"
#include "api/call_sizes.h"
#include "core/mask.h"
#include "core/validate.h"

namespace tilewise {
namespace {

// Largest power of two, up to a cache line, that base and outer strides are multiples of.
int32_t alignment_of(const tilewise_tensor& t) {
  const int64_t element = bits_of(static_cast<DType>(t.dtype)) / 8;
  auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(t.data)) | 64u;
  for (int i = 0; i + 1 < t.rank && i < TILEWISE_MAX_RANK; ++i)
    bits |= static_cast<uint64_t>(stride_of(t, i)) * static_cast<uint64_t>(element);
  return static_cast<int32_t>(bits & (~bits + 1));
}

// False for rows that the GPUs' copy engine cannot step through: repeated or reversed ones.
bool is_copyable(const tilewise_tensor& t) {
  for (int i = 0; i + 1 < t.rank && i < TILEWISE_MAX_RANK; ++i) {
    if (t.shape[i] <= 1) continue;
    if (stride_of(t, i) < 0 || (i == t.rank - 3 && stride_of(t, i) == 0)) return false;
  }
  return true;
}

void fill_features(const tilewise_tensors& t, tilewise_problem* p) {
  const bool backward = p->direction == TILEWISE_BACKWARD;
  const struct {
    const tilewise_tensor& tensor;
    uint32_t bit;
    bool applies;
  } features[] = {{t.bias, TILEWISE_HAS_BIAS, true},
                  {t.mask, TILEWISE_HAS_MASK, true},
                  {t.q_lengths, TILEWISE_HAS_Q_LENGTHS, true},
                  {t.kv_lengths, TILEWISE_HAS_KV_LENGTHS, true},
                  {t.kv_starts, TILEWISE_HAS_KV_STARTS, true},
                  {t.q_offset, TILEWISE_HAS_Q_OFFSET, true},
                  {t.segment_ids_q, TILEWISE_HAS_SEGMENT_IDS, true},
                  {t.segment_ids_kv, TILEWISE_HAS_SEGMENT_IDS, true},
                  {t.kv_ranges, TILEWISE_HAS_KV_RANGES, true},
                  {t.alibi_slopes, TILEWISE_HAS_ALIBI, true},
                  {t.sinks, TILEWISE_HAS_SINKS, true},
                  {t.lse, TILEWISE_HAS_LSE, !backward},
                  {t.dlse, TILEWISE_HAS_DLSE, backward},
                  {t.delta, TILEWISE_HAS_DELTA, backward},
                  {t.cache_batch_idx, TILEWISE_HAS_CACHE_BATCH_IDX, true},
                  {t.k_scales, TILEWISE_HAS_KV_SCALES, true},
                  {t.v_scales, TILEWISE_HAS_KV_SCALES, true}};
  p->features = 0;
  for (const auto& f : features) {
    if (f.applies && present(f.tensor)) p->features |= f.bit;
  }
}

void fill_dtypes(const tilewise_tensors& t, tilewise_problem* p) {
  const struct {
    const tilewise_tensor& tensor;
    int32_t* dtype;
  } dtypes[] = {{t.q, &p->dtype_q},         {t.k, &p->dtype_k},       {t.v, &p->dtype_v},
                {t.o, &p->dtype_o},         {t.dout, &p->dtype_dout}, {t.dq, &p->dtype_dq},
                {t.dk, &p->dtype_dk},       {t.dv, &p->dtype_dv},     {t.bias, &p->dtype_bias},
                {t.dbias, &p->dtype_dbias}, {t.mask, &p->dtype_mask}};
  for (const auto& d : dtypes) {
    if (present(d.tensor)) *d.dtype = d.tensor.dtype;
  }
}

void fill_wants(const tilewise_tensors& t, tilewise_problem* p) {
  if (p->direction != TILEWISE_BACKWARD || p->wants != 0) return;
  const tilewise_tensor* gradients[] = {&t.dq, &t.dk, &t.dv, &t.dbias, &t.dsinks};
  for (int i = 0; i < 5; ++i) {
    if (present(*gradients[i])) p->wants |= 1 << i;
  }
}

// The longest sequence, as host offsets say.
Status longest(const char* name, const tilewise_tensor& cu, int64_t total, int64_t* seqlen) {
  if (*seqlen != 0) return {};
  if (cu.device_kind != TILEWISE_CPU)
    return {Code::invalid,
            cat("options give no longest sequence and ", name, " is on a device; accepted: seqlen set")};
  TensorChecks checks(TILEWISE_CPU);
  if (!checks.dtype(name, cu, {DType::i32, DType::i64}) ||
      !checks.layout(name, cu, {1, {cu.shape[0], 0, 0, 0}, "[batch + 1]"}, {}))
    return checks.take_status();
  const IndexTensor index{cu.data, static_cast<DType>(cu.dtype), stride_of(cu, 0), 0, 0};
  for (int64_t b = 0; b + 1 < cu.shape[0]; ++b) {
    const int64_t begin = clamp_index(read_index(index, b), 0, total);
    *seqlen = std::max(*seqlen, clamp_index(read_index(index, b + 1), begin, total) - begin);
  }
  return {};
}

// A cache's own sizes; page_table says that it is paged.
bool fill_cache(TensorChecks& checks, const tilewise_tensors& t, tilewise_problem* p) {
  p->page_size = p->max_pages = p->num_pages = p->cache_slots = 0;
  const bool paged = present(t.page_table);
  if (!paged && !present(t.cache_batch_idx)) return true;
  if (present(t.cu_seqlens_kv))
    return checks.fail(cat(paged ? "page_table" : "cache_batch_idx",
                           " comes with cu_seqlens_kv; accepted: packed keys or a cache of them, not both"));
  if (!checks.rank("k", t.k, 4,
                   paged ? "[num_pages, page_size, heads_kv, head_dim]"
                         : "[cache_slots, seqlen_kv, heads_kv, head_dim]"))
    return false;
  if (!paged) {
    p->cache_slots = t.k.shape[0];
    return true;
  }
  if (!checks.rank("page_table", t.page_table, 2, "[batch, max_pages]")) return false;
  if (t.k.shape[1] < 1)
    return checks.fail(cat("k has pages of ", t.k.shape[1], " rows; accepted: 1 or more, with page_table"));
  p->num_pages = t.k.shape[0];
  p->page_size = t.k.shape[1];
  p->max_pages = t.page_table.shape[1];
  if (p->seqlen_kv == 0 && __builtin_mul_overflow(p->max_pages, p->page_size, &p->seqlen_kv))
    return checks.fail("page_table and k give sequences of more than 2^63 rows; accepted: fewer");
  return true;
}

// How many rows share a scale does not follow from how many scales there are.
bool check_scales(TensorChecks& checks, const tilewise_tensors& t, const tilewise_problem& p) {
  for (const auto& [name, scales] :
       {std::pair("k_scales", &t.k_scales), std::pair("v_scales", &t.v_scales)}) {
    if (!present(*scales)) continue;
    if (!checks.rank(name, *scales, p.scale_rows > 0 ? 3 : 2,
                     p.scale_rows > 0 ? "[blocks, groups of scale_rows, heads_kv]"
                                      : "[blocks, heads_kv]; with scale_rows 3, [blocks, groups, heads_kv]"))
      return false;
  }
  return true;
}

bool fill_score_shape(TensorChecks& checks, const char* name, const tilewise_tensor& t, int64_t* shape) {
  if (!present(t)) return true;
  if (!checks.rank(name, t, 4, "[batch, heads_q, seqlen_q, seqlen_kv], 1 to repeat")) return false;
  std::copy(t.shape, t.shape + 4, shape);
  return true;
}

}  // namespace

Status problem_from_tensors(const tilewise_problem& options, const tilewise_tensors& t, tilewise_problem* p) {
  *p = options;
  if (options.struct_bytes != sizeof options) return validate(options);
  p->packed_q = present(t.cu_seqlens_q);
  p->packed_kv = present(t.cu_seqlens_kv);
  fill_features(t, p);
  fill_dtypes(t, p);
  fill_wants(t, p);
  TensorChecks checks(TILEWISE_CPU);
  CallSizes s;
  if (!checks.require("q", t.q) || !checks.require("k", t.k) || !checks.require("v", t.v) ||
      !fill_cache(checks, t, p) || !check_scales(checks, t, *p) || !read_sizes(checks, *p, t, &s) ||
      !fill_score_shape(checks, "bias", t.bias, p->bias_shape) ||
      !fill_score_shape(checks, "mask", t.mask, p->mask_shape))
    return checks.take_status();
  const int heads = p->packed_q ? 1 : 2, heads_kv = p->packed_kv ? 1 : 2;
  if (!checks.rank("v", t.v, heads_kv + 2, labels_of(*p, kLikeV))) return checks.take_status();
  p->batch = s.batch;
  p->total_q = s.total_q;
  p->total_kv = s.total_kv;
  p->seqlen_q = s.seqlen_q;
  p->seqlen_kv = s.seqlen_kv;
  if (p->packed_q) {
    if (Status l = longest("cu_seqlens_q", t.cu_seqlens_q, s.total_q, &p->seqlen_q); !l.ok()) return l;
  }
  if (p->packed_kv) {
    if (Status l = longest("cu_seqlens_kv", t.cu_seqlens_kv, s.total_kv, &p->seqlen_kv); !l.ok()) return l;
  }
  p->heads_q = t.q.shape[heads];
  p->heads_kv = t.k.shape[heads_kv];
  p->head_dim = t.q.shape[heads + 1];
  p->head_dim_v = t.v.shape[heads_kv + 1];
  p->alibi_per_batch = present(t.alibi_slopes) && t.alibi_slopes.rank == 2;
  p->alignment = 64;
  for (const tilewise_tensor* x : {&t.q, &t.k, &t.v, &t.o, &t.dout, &t.dq, &t.dk, &t.dv}) {
    if (present(*x) && has_elements(*x)) p->alignment = std::min(p->alignment, alignment_of(*x));
  }
  // Kernels on the copy engine ask for 16 bytes; one that takes any strides asks for no more than the
  // element.
  for (const tilewise_tensor* x : {&t.q, &t.k, &t.v}) {
    if (x->device_kind == TILEWISE_CUDA && present(*x) && has_elements(*x) && !is_copyable(*x))
      p->alignment =
          std::min<int32_t>(p->alignment, static_cast<int32_t>(bits_of(static_cast<DType>(x->dtype)) / 8));
  }
  return validate(*p);
}

}  // namespace tilewise

tilewise_code tilewise_problem_from_tensors(const tilewise_problem* options, const tilewise_tensors* tensors,
                                            tilewise_problem* problem, tilewise_error* error) {
  using namespace tilewise;
  return guarded(error, [&]() -> Status {
    if (!options) return null_argument("options");
    if (!tensors) return null_argument("tensors");
    if (!problem) return null_argument("problem");
    if (Status s = problem_from_tensors(*options, *tensors, problem); !s.ok()) return s;
    // A caller who plans by hand hears now what the call would refuse; outputs and what only backward reads
    // need not be there yet.
    ForwardParams params;
    const Place place{tensors->q.device_kind, tensors->q.device_index};
    const bool whole = problem->direction == TILEWISE_FORWARD && present(tensors->o);
    return whole ? bind_forward(*problem, place, *tensors, &params)
                 : bind_scores(*problem, place, *tensors, &params);
  });
}
