#include "core/validate.h"

#include <cmath>

#include "core/text.h"

namespace tilewise {
namespace {

Status broken(std::string sentence) { return {Code::invalid, std::move(sentence)}; }

std::string dtype_text(int32_t dtype) {
  if (!is_dtype(dtype)) return cat("dtype ", dtype);
  return name_of(static_cast<DType>(dtype));
}

bool is_float(int32_t dtype) {
  return dtype == TILEWISE_F32 || dtype == TILEWISE_F16 || dtype == TILEWISE_BF16;
}

Status check_float(const char* field, int32_t dtype) {
  if (is_float(dtype)) return {};
  return broken(cat(field, " is ", dtype_text(dtype), "; accepted: f32, f16, bf16"));
}

Status check_flag(const char* field, int32_t value) {
  if (value == 0 || value == 1) return {};
  return broken(cat(field, " is ", value, "; accepted: 0 or 1"));
}

Status check_sizes(const tilewise_problem& p) {
  struct Size {
    const char* name;
    int64_t value, least;
  };
  const Size sizes[] = {
      {"batch", p.batch, 0},       {"seqlen_q", p.seqlen_q, 0}, {"seqlen_kv", p.seqlen_kv, 0},
      {"total_q", p.total_q, 0},   {"total_kv", p.total_kv, 0}, {"heads_q", p.heads_q, 1},
      {"heads_kv", p.heads_kv, 1}, {"head_dim", p.head_dim, 1}, {"head_dim_v", p.head_dim_v, 1}};
  for (const Size& s : sizes) {
    if (s.value < s.least) return broken(cat(s.name, " is ", s.value, "; accepted: ", s.least, " or more"));
  }
  if (p.heads_q % p.heads_kv != 0) {
    return broken(cat("heads_q is ", p.heads_q, " and heads_kv is ", p.heads_kv,
                      "; accepted: heads_q a multiple of heads_kv (query head h reads key head "
                      "h / (heads_q / heads_kv))"));
  }
  return {};
}

// Bytes of the largest possible tensor must fit int64, so that no offset can wrap.
Status check_overflow(const char* what, std::initializer_list<int64_t> sizes) {
  for (int64_t size : sizes) {
    if (size == 0) return {};
  }
  int64_t product = 8;
  for (int64_t size : sizes) {
    if (__builtin_mul_overflow(product, size, &product)) {
      return broken(cat(what, " would have more than 2^60 elements; sizes ",
                        shape_text(sizes.begin(), static_cast<int>(sizes.size())),
                        " are accepted only while their product stays below that"));
    }
  }
  return {};
}

Status check_packing(const tilewise_problem& p) {
  if (Status s = check_flag("packed_q", p.packed_q); !s.ok()) return s;
  if (Status s = check_flag("packed_kv", p.packed_kv); !s.ok()) return s;
  if (!p.packed_q && p.total_q != 0) {
    return broken(
        cat("total_q is ", p.total_q, " but packed_q is 0; accepted: 0, or packed_q 1 with cu_seqlens_q"));
  }
  if (!p.packed_kv && p.total_kv != 0) {
    return broken(cat("total_kv is ", p.total_kv,
                      " but packed_kv is 0; accepted: 0, or packed_kv 1 with cu_seqlens_kv"));
  }
  return {};
}

// Paged and slotted caches: sizes that agree, and nothing that has no meaning there.
Status check_cache(const tilewise_problem& p) {
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"page_size", p.page_size},
               {"max_pages", p.max_pages},
               {"num_pages", p.num_pages},
               {"cache_slots", p.cache_slots}};
  for (const auto& s : sizes) {
    if (s.value < 0) return broken(cat(s.name, " is ", s.value, "; accepted: 0 or more"));
  }
  const bool slots = (p.features & TILEWISE_HAS_CACHE_BATCH_IDX) != 0;
  if (!p.page_size && (p.max_pages || p.num_pages))
    return broken(cat("page_size is 0 with max_pages ", p.max_pages, " and num_pages ", p.num_pages,
                      "; accepted: a page_size of 1 or more, or all three 0 (not paged)"));
  if (!slots && p.cache_slots)
    return broken(cat("cache_slots is ", p.cache_slots,
                      " without the feature cache_batch_idx; accepted: 0, or that feature"));
  if (!p.page_size && !slots) return {};
  if (p.packed_kv)
    return broken(cat("packed_kv is 1 with ", slots ? "cache_batch_idx" : "page_size",
                      "; accepted: packed keys or a cache of them, not both"));
  if (p.page_size && slots)
    return broken(
        "cache_batch_idx comes with page_size; accepted: one of them (a row of page_table is any "
        "sequence's)");
  if (p.direction == TILEWISE_BACKWARD)
    return broken(cat(slots ? "cache_batch_idx" : "page_size",
                      " comes with direction backward; accepted: forward only, as caches take no gradient"));
  int64_t rows = 0;
  if (p.page_size && !__builtin_mul_overflow(p.page_size, p.max_pages, &rows) && p.seqlen_kv > rows)
    return broken(cat("seqlen_kv is ", p.seqlen_kv, "; accepted: up to max_pages * page_size = ", p.max_pages,
                      " * ", p.page_size, " = ", rows));
  return {};
}

// k and v: floating-point, or both of one quantised dtype, with scales where it needs them.
Status check_kv_dtypes(const tilewise_problem& p) {
  const auto quantized = [](int32_t dtype) { return is_quantized(static_cast<DType>(dtype)); };
  const struct {
    const char* field;
    int32_t dtype;
  } tensors[] = {{"dtype_k", p.dtype_k}, {"dtype_v", p.dtype_v}};
  for (const auto& t : tensors) {
    if (is_float(t.dtype) || quantized(t.dtype)) continue;
    return broken(cat(t.field, " is ", dtype_text(t.dtype), "; accepted: f32, f16, bf16, f8e4m3, i8"));
  }
  const bool scales = (p.features & TILEWISE_HAS_KV_SCALES) != 0;
  if (p.scale_rows < 0 || (p.scale_rows > 0 && !scales))
    return broken(cat("scale_rows is ", p.scale_rows, scales ? "" : " without the feature kv_scales",
                      "; accepted: 0 (one scale for all rows of a page, slot or sequence), or the rows that "
                      "share one, with k_scales and v_scales"));
  if (Status s =
          check_quantized("dtype_", static_cast<DType>(p.dtype_k), static_cast<DType>(p.dtype_v), scales);
      !s.ok())
    return s;
  if (!quantized(p.dtype_k)) return {};
  if (p.direction == TILEWISE_BACKWARD)
    return broken(cat("dtype_k is ", dtype_text(p.dtype_k),
                      " with direction backward; accepted: f32, f16, bf16, as a quantised cache takes no "
                      "gradient"));
  if (p.dtype_k == TILEWISE_I8 && !scales)
    return broken("dtype_k is i8 without k_scales and v_scales; accepted: i8 with both");
  return {};
}

Status check_all_sizes_fit(const tilewise_problem& p) {
  const int64_t d = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
  if (Status s = p.packed_q ? check_overflow("q", {p.total_q, p.heads_q, d})
                            : check_overflow("q", {p.batch, p.seqlen_q, p.heads_q, d});
      !s.ok())
    return s;
  if (p.packed_kv) return check_overflow("k", {p.total_kv, p.heads_kv, d});
  if (p.page_size) return check_overflow("k", {p.num_pages, p.page_size, p.heads_kv, d});
  const int64_t sequences = p.features & TILEWISE_HAS_CACHE_BATCH_IDX ? p.cache_slots : p.batch;
  return check_overflow("k", {sequences, p.seqlen_kv, p.heads_kv, d});
}

// bias and mask: each dimension 1 or the size of [batch, heads_q, seqlen_q, seqlen_kv].
Status check_broadcast(const char* name, const int64_t* shape, const tilewise_problem& p) {
  const int64_t full[4] = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_kv};
  for (int i = 0; i < 4; ++i) {
    if (shape[i] != 1 && shape[i] != full[i]) {
      return broken(cat(name, "_shape is ", shape_text(shape, 4),
                        "; accepted: each dimension 1 or that of [batch, heads_q, seqlen_q, seqlen_kv] = ",
                        shape_text(full, 4)));
    }
  }
  return check_overflow(name, {shape[0], shape[1], shape[2], shape[3]});
}

Status check_score_tensors(const tilewise_problem& p) {
  if (p.features & TILEWISE_HAS_BIAS) {
    if (Status s = check_float("dtype_bias", p.dtype_bias); !s.ok()) return s;
    if (Status s = check_broadcast("bias", p.bias_shape, p); !s.ok()) return s;
  }
  if (p.features & TILEWISE_HAS_MASK) {
    if (p.dtype_mask != TILEWISE_BOOL && p.dtype_mask != TILEWISE_BIT) {
      return broken(cat("dtype_mask is ", dtype_text(p.dtype_mask),
                        "; accepted: bool or bit (an additive mask is `bias`)"));
    }
    if (Status s = check_broadcast("mask", p.mask_shape, p); !s.ok()) return s;
  }
  return check_flag("alibi_per_batch", p.alibi_per_batch);
}

Status check_window(const char* field, int64_t value) {
  if (value >= -1) return {};
  return broken(cat(field, " is ", value,
                    "; accepted: -1 (unbounded) or 0 and more (keys beside the query's "
                    "position, inclusive; Hugging Face's sliding_window W is window_left W-1)"));
}

Status check_mask_options(const tilewise_problem& p) {
  if (Status s = check_flag("causal", p.causal); !s.ok()) return s;
  if (Status s = check_window("window_left", p.window_left); !s.ok()) return s;
  if (Status s = check_window("window_right", p.window_right); !s.ok()) return s;
  if (p.position < TILEWISE_BOTTOM_RIGHT || p.position > TILEWISE_GIVEN) {
    return broken(cat("position is ", p.position, "; accepted: 0 (bottom-right), 1 (top-left), 2 (given)"));
  }
  if ((p.features & TILEWISE_HAS_Q_OFFSET) && p.position != TILEWISE_GIVEN) {
    return broken(cat("the tensor q_offset comes with position ",
                      p.position == TILEWISE_TOP_LEFT ? "top-left" : "bottom-right",
                      "; accepted: position given (2), or no q_offset"));
  }
  return {};
}

Status check_scores(const tilewise_problem& p) {
  if (std::isinf(p.softmax_scale)) {
    return broken(cat("softmax_scale is ", p.softmax_scale,
                      "; accepted: any finite number, or NaN for 1/sqrt(head_dim)"));
  }
  if (!(p.softcap >= 0.0f) || std::isinf(p.softcap)) {
    return broken(cat("softcap is ", p.softcap, "; accepted: 0 (none) or a positive finite number"));
  }
  if (!(p.dropout_p >= 0.0f && p.dropout_p < 1.0f)) {
    return broken(cat("dropout_p is ", p.dropout_p, "; accepted: 0 (none) or more, below 1"));
  }
  return {};
}

Status check_gradients(const tilewise_problem& p) {
  constexpr int32_t kAll =
      TILEWISE_WANT_DQ | TILEWISE_WANT_DK | TILEWISE_WANT_DV | TILEWISE_WANT_DBIAS | TILEWISE_WANT_DSINKS;
  if (p.wants == 0 || (p.wants & ~kAll)) {
    return broken(cat("wants is ", p.wants,
                      "; accepted for backward: at least one of dq 1, dk 2, dv 4, dbias 8, "
                      "dsinks 16"));
  }
  if (Status s = check_float("dtype_dout", p.dtype_dout); !s.ok()) return s;
  struct Gradient {
    const char* field;
    int32_t bit, dtype;
    bool accumulates;
  };
  const Gradient gradients[] = {{"dtype_dq", TILEWISE_WANT_DQ, p.dtype_dq, true},
                                {"dtype_dk", TILEWISE_WANT_DK, p.dtype_dk, true},
                                {"dtype_dv", TILEWISE_WANT_DV, p.dtype_dv, true},
                                {"dtype_dbias", TILEWISE_WANT_DBIAS, p.dtype_dbias, false}};
  for (const Gradient& g : gradients) {
    if (!(p.wants & g.bit)) continue;
    if (Status s = check_float(g.field, g.dtype); !s.ok()) return s;
    if (p.accumulate && g.accumulates && g.dtype != TILEWISE_F32) {
      return broken(cat(g.field, " is ", dtype_text(g.dtype),
                        " with accumulate; accepted: f32 (sums in 16 bit lose "
                        "what they add)"));
    }
  }
  if ((p.wants & TILEWISE_WANT_DBIAS) && !(p.features & TILEWISE_HAS_BIAS))
    return broken("wants asks for dbias without a bias; accepted: dbias only with the feature bias");
  if ((p.wants & TILEWISE_WANT_DSINKS) && !(p.features & TILEWISE_HAS_SINKS))
    return broken(
        "wants asks for dsinks without sinks (s_aux); accepted: dsinks only with the feature sinks");
  return {};
}

Status check_direction(const tilewise_problem& p) {
  if (Status s = check_flag("accumulate", p.accumulate); !s.ok()) return s;
  if (p.direction == TILEWISE_BACKWARD) return check_gradients(p);
  if (p.direction != TILEWISE_FORWARD)
    return broken(cat("direction is ", p.direction, "; accepted: 0 (forward) or 1 (backward)"));
  if (p.wants)
    return broken(cat("wants is ", p.wants, " in a forward problem; accepted: 0, or direction backward"));
  if (p.accumulate) return broken("accumulate is 1 in a forward problem; accepted: 0, or direction backward");
  if (p.features & (TILEWISE_HAS_DLSE | TILEWISE_HAS_DELTA)) {
    return broken(cat((p.features & TILEWISE_HAS_DLSE) ? "dlse" : "delta",
                      " comes with a forward problem; accepted: only with direction backward"));
  }
  return {};
}

}  // namespace

Status check_quantized(const char* prefix, DType k, DType v, bool scales) {
  const bool quantized = is_quantized(k) || is_quantized(v);
  if (quantized && k != v)
    return broken(cat(prefix, "k is ", name_of(k), " and ", prefix, "v is ", name_of(v),
                      "; accepted: the same, where one is f8e4m3 or i8"));
  if (scales && !quantized)
    return broken(
        cat("k_scales and v_scales come with k in ", name_of(k), "; accepted: only with f8e4m3 or i8"));
  return {};
}

Status validate(const tilewise_problem& p) {
  if (p.struct_bytes != sizeof(tilewise_problem)) {
    return broken(cat("problem.struct_bytes is ", p.struct_bytes, "; accepted: ", sizeof(tilewise_problem),
                      " (start from tilewise_problem_init of the same library version)"));
  }
  constexpr uint32_t kFeatures = (TILEWISE_HAS_KV_SCALES << 1) - 1;
  if (p.features & ~kFeatures) {
    return broken(
        cat("features is ", p.features, "; accepted: bits of tilewise_feature, at most ", kFeatures));
  }
  if (p.alignment < 1 || p.alignment > 4096 || (p.alignment & (p.alignment - 1))) {
    return broken(cat("alignment is ", p.alignment, "; accepted: a power of two from 1 to 4096"));
  }
  if (Status s = check_sizes(p); !s.ok()) return s;
  if (Status s = check_packing(p); !s.ok()) return s;
  if (Status s = check_cache(p); !s.ok()) return s;
  if (Status s = check_all_sizes_fit(p); !s.ok()) return s;
  if (Status s = check_float("dtype_q", p.dtype_q); !s.ok()) return s;
  if (Status s = check_kv_dtypes(p); !s.ok()) return s;
  if (Status s = check_float("dtype_o", p.dtype_o); !s.ok()) return s;
  if (Status s = check_mask_options(p); !s.ok()) return s;
  if (Status s = check_scores(p); !s.ok()) return s;
  if (Status s = check_score_tensors(p); !s.ok()) return s;
  if (Status s = check_flag("deterministic", p.deterministic); !s.ok()) return s;
  if (Status s = check_flag("batch_invariant", p.batch_invariant); !s.ok()) return s;
  return check_direction(p);
}

}  // namespace tilewise
