#include "api/bind.h"

#include <algorithm>
#include <cmath>

#include "api/call_sizes.h"
#include "core/dropout.h"
#include "core/problem_fields.h"
#include "core/text.h"
#include "core/validate.h"

namespace tilewise {
namespace {

// Checks and converts the tensors of one call.
class Binder {
 public:
  Binder(const tilewise_problem& problem, Place place)
      : p_(problem), place_(place), checks_(place.kind, place.index) {}

  bool sizes(const tilewise_tensors& t) { return read_sizes(checks_, p_, t, &s_); }
  bool check_bounds();
  TensorChecks& checks() { return checks_; }
  const CallSizes& call() const { return s_; }

  void rows(RowTensor& out, const char* name, const tilewise_tensor& t, RowKind kind, int32_t dtype,
            Access access);
  void stats(RowStats& out, const char* name, const tilewise_tensor& t, Access access);
  void scores(ScoreTensor& out, const char* name, const tilewise_tensor& t, const int64_t* planned,
              int32_t dtype, Access access);
  void per_sequence(IndexTensor& out, const char* name, const tilewise_tensor& t);
  void cu_seqlens(IndexTensor& out, const char* name, const tilewise_tensor& t);
  void per_row(IndexTensor& out, const char* name, const tilewise_tensor& t, bool kv);
  void ranges(IndexTensor& out, const tilewise_tensor& t);
  void pages(ForwardParams& out, const tilewise_tensor& t);
  void scales(CacheScales& out, const char* name, const tilewise_tensor& t);
  const float* per_head(const char* name, const tilewise_tensor& t, Access access, int64_t* stride);
  void alibi(ForwardParams& out, const tilewise_tensor& t);
  void dropout(ForwardParams& out, const tilewise_tensors& t);

  // True where the feature is planned and the tensor here; a mismatch either way is an error.
  bool expects(const char* name, const tilewise_tensor& t, bool planned);

 private:
  const tilewise_problem& p_;
  const Place place_;
  TensorChecks checks_;
  CallSizes s_;
};

bool Binder::expects(const char* name, const tilewise_tensor& t, bool planned) {
  if (!checks_.ok()) return false;
  if (planned) return checks_.require(name, t);
  if (present(t))
    checks_.fail(
        cat(name, " is given, but the plan was made without it; accepted: a plan whose problem has it"));
  return false;
}

bool Binder::check_bounds() {
  const struct {
    const char *what, *tensor;
    int64_t value, bound;
  } bounds[] = {{"batch", "q", s_.batch, p_.batch},
                {"seqlen_q", "q", s_.seqlen_q, p_.seqlen_q},
                {"seqlen_kv", "k", s_.seqlen_kv, p_.seqlen_kv},
                {"total_q", "q", s_.total_q, p_.total_q},
                {"total_kv", "k", s_.total_kv, p_.total_kv},
                {"num_pages", "k", p_.page_size ? s_.blocks_kv : 0, p_.num_pages},
                {"max_pages", "page_table", s_.max_pages, p_.max_pages},
                {"cache_slots", "k", p_.cache_slots ? s_.blocks_kv : 0, p_.cache_slots}};
  for (const auto& b : bounds) {
    if (b.value > b.bound)
      return checks_.fail(
          cat(b.tensor, " has ", b.what, " ", b.value, "; accepted: up to ", b.bound, ", the plan's bound"));
  }
  return true;
}

void Binder::rows(RowTensor& out, const char* name, const tilewise_tensor& t, RowKind kind, int32_t dtype,
                  Access access) {
  if (!checks_.ok() || !checks_.require(name, t)) return;
  const bool kv = kind == kLikeK || kind == kLikeV;
  const bool packed = kv ? p_.packed_kv : p_.packed_q;
  const int64_t heads = kv ? p_.heads_kv : p_.heads_q;
  const int64_t dim = kind == kLikeV || kind == kLikeO ? p_.head_dim_v : p_.head_dim;
  const char* labels = labels_of(p_, kind);
  const Shape shape = packed ? Shape{3, {kv ? s_.total_kv : s_.total_q, heads, dim, 0}, labels}
                      : kv   ? Shape{4, {s_.blocks_kv, s_.block_rows_kv, heads, dim}, labels}
                             : Shape{4, {s_.batch, s_.seqlen_q, heads, dim}, labels};
  if (!checks_.dtype(name, t, {static_cast<DType>(dtype)}) ||
      !checks_.layout(name, t, shape, {access, true, p_.alignment}))
    return;
  const int first = packed ? 0 : 1;
  out = {t.data, type_of(t), packed ? 0 : stride_of(t, 0), stride_of(t, first), stride_of(t, first + 1)};
}

void Binder::stats(RowStats& out, const char* name, const tilewise_tensor& t, Access access) {
  if (!checks_.ok() || !checks_.require(name, t)) return;
  const Shape shape = p_.packed_q
                          ? Shape{2, {p_.heads_q, s_.total_q, 0, 0}, "[heads_q, total_q]"}
                          : Shape{3, {s_.batch, p_.heads_q, s_.seqlen_q, 0}, "[batch, heads_q, seqlen_q]"};
  if (!checks_.dtype(name, t, {DType::f32}) || !checks_.layout(name, t, shape, {access, false, 1})) return;
  const int head = p_.packed_q ? 0 : 1;
  out = {static_cast<float*>(t.data), p_.packed_q ? 0 : stride_of(t, 0), stride_of(t, head),
         stride_of(t, head + 1)};
}

// Dimensions planned as 1 stay 1; the others are this call's size.
void Binder::scores(ScoreTensor& out, const char* name, const tilewise_tensor& t, const int64_t* planned,
                    int32_t dtype, Access access) {
  if (!checks_.ok() || !checks_.require(name, t)) return;
  const int64_t full[4] = {s_.batch, p_.heads_q, s_.seqlen_q, s_.seqlen_kv};
  Shape shape{4, {}, "[batch, heads_q, seqlen_q, seqlen_kv], 1 where planned as 1"};
  const int64_t bound[4] = {p_.batch, p_.heads_q, p_.seqlen_q, p_.seqlen_kv};
  for (int i = 0; i < 4; ++i) {
    // A bound of 1 leaves open whether the dimension repeats: then the tensor says it.
    const bool repeats = planned[i] == 1 && !(bound[i] == 1 && t.rank == 4 && t.shape[i] == full[i]);
    shape.size[i] = repeats ? 1 : full[i];
  }
  if (!checks_.dtype(name, t, {static_cast<DType>(dtype)}) ||
      !checks_.layout(name, t, shape, {access, false, 1}))
    return;
  out = {t.data, type_of(t), stride_of(t, 0), stride_of(t, 1), stride_of(t, 2), stride_of(t, 3)};
}

void Binder::per_sequence(IndexTensor& out, const char* name, const tilewise_tensor& t) {
  if (!checks_.dtype(name, t, {DType::i32}) ||
      !checks_.layout(name, t, {1, {s_.batch, 0, 0, 0}, "[batch]"}, {}))
    return;
  out = {t.data, type_of(t), stride_of(t, 0), 0, 0};
}

void Binder::cu_seqlens(IndexTensor& out, const char* name, const tilewise_tensor& t) {
  if (!checks_.dtype(name, t, {DType::i32, DType::i64}) ||
      !checks_.layout(name, t, {1, {s_.batch + 1, 0, 0, 0}, "[batch + 1]"}, {}))
    return;
  out = {t.data, type_of(t), stride_of(t, 0), 0, 0};
}

void Binder::per_row(IndexTensor& out, const char* name, const tilewise_tensor& t, bool kv) {
  if (!checks_.ok() || !checks_.require(name, t)) return;
  const bool packed = kv ? p_.packed_kv : p_.packed_q;
  const Shape shape =
      packed ? Shape{1, {kv ? s_.total_kv : s_.total_q, 0, 0, 0}, kv ? "[total_kv]" : "[total_q]"}
             : Shape{2,
                     {s_.batch, kv ? s_.seqlen_kv : s_.seqlen_q, 0, 0},
                     kv ? "[batch, seqlen_kv]" : "[batch, seqlen_q]"};
  if (!checks_.dtype(name, t, {DType::i32}) || !checks_.layout(name, t, shape, {})) return;
  out = {t.data, type_of(t), packed ? 0 : stride_of(t, 0), stride_of(t, packed ? 0 : 1), 0};
}

void Binder::ranges(IndexTensor& out, const tilewise_tensor& t) {
  const Shape shape = p_.packed_q ? Shape{2, {s_.total_q, 2, 0, 0}, "[total_q, 2]"}
                                  : Shape{3, {s_.batch, s_.seqlen_q, 2, 0}, "[batch, seqlen_q, 2]"};
  if (!checks_.dtype("kv_ranges", t, {DType::i32}) || !checks_.layout("kv_ranges", t, shape, {})) return;
  const int row = p_.packed_q ? 0 : 1;
  out = {t.data, type_of(t), p_.packed_q ? 0 : stride_of(t, 0), stride_of(t, row), stride_of(t, row + 1)};
}

void Binder::pages(ForwardParams& out, const tilewise_tensor& t) {
  const Shape shape{2, {s_.batch, s_.max_pages, 0, 0}, "[batch, max_pages]"};
  if (!checks_.dtype("page_table", t, {DType::i32}) || !checks_.layout("page_table", t, shape, {})) return;
  out.page_table = {t.data, type_of(t), stride_of(t, 0), stride_of(t, 1), 0};
  out.page_size = p_.page_size;
  out.num_pages = s_.blocks_kv;
}

void Binder::scales(CacheScales& out, const char* name, const tilewise_tensor& t) {
  const int64_t blocks = p_.packed_kv ? s_.batch : s_.blocks_kv,
                rows = p_.packed_kv ? s_.seqlen_kv : s_.block_rows_kv;
  bind_scales(checks_, name, t, blocks, rows, p_.heads_kv, p_.scale_rows, Access::input, &out);
}

const float* Binder::per_head(const char* name, const tilewise_tensor& t, Access access, int64_t* stride) {
  if (!checks_.ok() || !checks_.require(name, t) || !checks_.dtype(name, t, {DType::f32}) ||
      !checks_.layout(name, t, {1, {p_.heads_q, 0, 0, 0}, "[heads_q]"}, {access, false, 1}))
    return nullptr;
  *stride = stride_of(t, 0);
  return static_cast<const float*>(t.data);
}

void Binder::alibi(ForwardParams& out, const tilewise_tensor& t) {
  if (!p_.alibi_per_batch) {
    out.alibi_slopes = per_head("alibi_slopes", t, Access::input, &out.alibi_head_stride);
    return;
  }
  const Shape shape{2, {s_.batch, p_.heads_q, 0, 0}, "[batch, heads_q]"};
  if (!checks_.dtype("alibi_slopes", t, {DType::f32}) || !checks_.layout("alibi_slopes", t, shape, {}))
    return;
  out.alibi_slopes = static_cast<const float*>(t.data);
  out.alibi_batch_stride = stride_of(t, 0);
  out.alibi_head_stride = stride_of(t, 1);
}

void Binder::dropout(ForwardParams& out, const tilewise_tensors& t) {
  out.dropout_threshold = dropout_threshold_of(p_.dropout_p);
  out.dropout_seed = t.dropout_seed;
  out.dropout_offset = t.dropout_offset;
  if (!checks_.ok() || !present(t.dropout_state)) return;
  const Shape shape{1, {2, 0, 0, 0}, "[2] = seed, offset"};
  if (!checks_.dtype("dropout_state", t.dropout_state, {DType::u64}) ||
      !checks_.layout("dropout_state", t.dropout_state, shape, {}))
    return;
  const auto* state = static_cast<const uint64_t*>(t.dropout_state.data);
  if (place_.kind != TILEWISE_CPU) {
    out.dropout_state = state;
    out.dropout_state_stride = t.dropout_state.stride[0];
    return;
  }
  out.dropout_seed = state[0];
  out.dropout_offset = state[t.dropout_state.stride[0]];
}

// Windows past every possible position are no windows; causal is a window too.
void fill_options(const tilewise_problem& p, const CallSizes& s, ForwardParams* out) {
  const auto window = [](int64_t w) { return w >= 2 * kMaxOffset ? -1 : w; };
  out->batch = s.batch;
  out->heads_q = p.heads_q;
  out->heads_kv = p.heads_kv;
  out->seqlen_q = s.seqlen_q;
  out->seqlen_kv = s.seqlen_kv;
  out->total_q = s.total_q;
  out->total_kv = s.total_kv;
  out->head_dim = p.head_dim;
  out->head_dim_v = p.head_dim_v;
  out->scale = std::isnan(p.softmax_scale)
                   ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.head_dim)))
                   : p.softmax_scale;
  out->softcap = p.softcap;
  out->window_left = window(p.window_left);
  out->window_right = p.causal ? 0 : window(p.window_right);
  out->position = static_cast<tilewise_position>(p.position);
}

// q, k and everything that decides or shifts a score.
void bind_score_inputs(Binder& b, const tilewise_problem& p, const tilewise_tensors& t, ForwardParams* out) {
  if (!b.sizes(t) || !b.check_bounds()) return;
  fill_options(p, b.call(), out);
  b.rows(out->q, "q", t.q, kLikeQ, p.dtype_q, Access::input);
  b.rows(out->k, "k", t.k, kLikeK, p.dtype_k, Access::input);
  const auto has = [&](tilewise_feature f) { return (p.features & static_cast<uint32_t>(f)) != 0; };
  if (b.expects("cu_seqlens_q", t.cu_seqlens_q, p.packed_q))
    b.cu_seqlens(out->cu_seqlens_q, "cu_seqlens_q", t.cu_seqlens_q);
  if (b.expects("cu_seqlens_kv", t.cu_seqlens_kv, p.packed_kv))
    b.cu_seqlens(out->cu_seqlens_kv, "cu_seqlens_kv", t.cu_seqlens_kv);
  if (b.expects("bias", t.bias, has(TILEWISE_HAS_BIAS)))
    b.scores(out->bias, "bias", t.bias, p.bias_shape, p.dtype_bias, Access::input);
  if (b.expects("mask", t.mask, has(TILEWISE_HAS_MASK)))
    b.scores(out->mask, "mask", t.mask, p.mask_shape, p.dtype_mask, Access::input);
  if (b.expects("q_lengths", t.q_lengths, has(TILEWISE_HAS_Q_LENGTHS)))
    b.per_sequence(out->q_lengths, "q_lengths", t.q_lengths);
  if (b.expects("kv_lengths", t.kv_lengths, has(TILEWISE_HAS_KV_LENGTHS)))
    b.per_sequence(out->kv_lengths, "kv_lengths", t.kv_lengths);
  if (b.expects("kv_starts", t.kv_starts, has(TILEWISE_HAS_KV_STARTS)))
    b.per_sequence(out->kv_starts, "kv_starts", t.kv_starts);
  if (b.expects("q_offset", t.q_offset, has(TILEWISE_HAS_Q_OFFSET)))
    b.per_sequence(out->q_offset, "q_offset", t.q_offset);
  if (b.expects("page_table", t.page_table, p.page_size > 0)) b.pages(*out, t.page_table);
  if (b.expects("cache_batch_idx", t.cache_batch_idx, has(TILEWISE_HAS_CACHE_BATCH_IDX))) {
    b.per_sequence(out->cache_batch_idx, "cache_batch_idx", t.cache_batch_idx);
    out->cache_slots = b.call().blocks_kv;
  }
  const bool scaled = has(TILEWISE_HAS_KV_SCALES);
  if (b.expects("k_scales", t.k_scales, scaled)) b.scales(out->k_scales, "k_scales", t.k_scales);
  if (b.expects("v_scales", t.v_scales, scaled)) b.scales(out->v_scales, "v_scales", t.v_scales);
  out->scale_rows = p.scale_rows;
  if (p.position == TILEWISE_GIVEN && !has(TILEWISE_HAS_Q_OFFSET)) {
    out->q_offset_value = t.q_offset_value;
    if (t.q_offset_value > kMaxOffset || t.q_offset_value < -kMaxOffset)
      b.checks().fail(cat("q_offset_value is ", t.q_offset_value, "; accepted: -2^60 to 2^60"));
  }
  const bool segments = has(TILEWISE_HAS_SEGMENT_IDS);
  if (b.expects("segment_ids_q", t.segment_ids_q, segments))
    b.per_row(out->segment_ids_q, "segment_ids_q", t.segment_ids_q, false);
  if (b.expects("segment_ids_kv", t.segment_ids_kv, segments))
    b.per_row(out->segment_ids_kv, "segment_ids_kv", t.segment_ids_kv, true);
  if (b.expects("kv_ranges", t.kv_ranges, has(TILEWISE_HAS_KV_RANGES))) b.ranges(out->kv_ranges, t.kv_ranges);
  if (b.expects("alibi_slopes", t.alibi_slopes, has(TILEWISE_HAS_ALIBI))) b.alibi(*out, t.alibi_slopes);
  if (b.expects("sinks", t.sinks, has(TILEWISE_HAS_SINKS)))
    out->sinks = b.per_head("sinks", t.sinks, Access::input, &out->sinks_stride);
}

void bind_gradients(Binder& b, const tilewise_problem& p, const tilewise_tensors& t, BackwardParams* out) {
  const auto wants = [&](tilewise_gradient g) { return (p.wants & g) != 0; };
  if (b.expects("dq", t.dq, wants(TILEWISE_WANT_DQ)))
    b.rows(out->dq, "dq", t.dq, kLikeQ, p.dtype_dq, Access::output);
  if (b.expects("dk", t.dk, wants(TILEWISE_WANT_DK)))
    b.rows(out->dk, "dk", t.dk, kLikeK, p.dtype_dk, Access::output);
  if (b.expects("dv", t.dv, wants(TILEWISE_WANT_DV)))
    b.rows(out->dv, "dv", t.dv, kLikeV, p.dtype_dv, Access::output);
  if (b.expects("dbias", t.dbias, wants(TILEWISE_WANT_DBIAS))) {
    for (int i = 0; i < 4; ++i) out->bias_shape[i] = t.bias.shape[i];
    b.scores(out->dbias, "dbias", t.dbias, p.bias_shape, p.dtype_dbias, Access::output);
    if (b.checks().ok() && !std::equal(t.bias.shape, t.bias.shape + 4, t.dbias.shape)) {
      b.checks().fail(cat("dbias has shape ", shape_text(t.dbias.shape, 4),
                          "; accepted: ", shape_text(t.bias.shape, 4), ", the bias's"));
    }
  }
  if (b.expects("dsinks", t.dsinks, wants(TILEWISE_WANT_DSINKS)))
    out->dsinks = const_cast<float*>(b.per_head("dsinks", t.dsinks, Access::output, &out->dsinks_stride));
}

}  // namespace

bool bind_scales(TensorChecks& checks, const char* name, const tilewise_tensor& t, int64_t blocks,
                 int64_t rows, int64_t heads, int64_t scale_rows, Access access, CacheScales* out) {
  const bool grouped = scale_rows > 0;
  const int64_t groups = grouped ? rows / scale_rows + (rows % scale_rows != 0) : 1;
  const Shape shape = grouped
                          ? Shape{3, {blocks, groups, heads, 0}, "[blocks, groups of scale_rows, heads_kv]"}
                          : Shape{2, {blocks, heads, 0, 0}, "[blocks, heads_kv], without scale_rows"};
  if (!checks.dtype(name, t, {DType::f32}) || !checks.layout(name, t, shape, {access, false, 1}))
    return false;
  *out = {static_cast<const float*>(t.data), stride_of(t, 0), grouped ? stride_of(t, 1) : 0,
          stride_of(t, grouped ? 2 : 1)};
  return true;
}

Status bind_scores(const tilewise_problem& p, Place place, const tilewise_tensors& t, ForwardParams* out) {
  Binder b(p, place);
  bind_score_inputs(b, p, t, out);
  return b.checks().take_status();
}

Status bind_forward(const tilewise_problem& p, Place place, const tilewise_tensors& t, ForwardParams* out) {
  Binder b(p, place);
  bind_score_inputs(b, p, t, out);
  b.rows(out->v, "v", t.v, kLikeV, p.dtype_v, Access::input);
  b.rows(out->o, "o", t.o, kLikeO, p.dtype_o, Access::output);
  if (b.expects("lse", t.lse, p.features & TILEWISE_HAS_LSE)) b.stats(out->lse, "lse", t.lse, Access::output);
  b.dropout(*out, t);
  if (b.checks().ok()) b.checks().overlaps();
  return b.checks().take_status();
}

Status bind_backward(const tilewise_problem& p, Place place, const tilewise_tensors& t, BackwardParams* out) {
  Binder b(p, place);
  bind_score_inputs(b, p, t, out);
  b.rows(out->v, "v", t.v, kLikeV, p.dtype_v, Access::input);
  b.stats(out->lse, "lse", t.lse, Access::input);
  b.rows(out->dout, "dout", t.dout, kLikeO, p.dtype_dout, Access::input);
  if (b.expects("delta", t.delta, p.features & TILEWISE_HAS_DELTA)) {
    b.stats(out->delta, "delta", t.delta, Access::input);
  } else {
    b.rows(out->o, "o", t.o, kLikeO, p.dtype_o, Access::input);
  }
  if (b.expects("dlse", t.dlse, p.features & TILEWISE_HAS_DLSE))
    b.stats(out->dlse, "dlse", t.dlse, Access::input);
  b.dropout(*out, t);
  out->accumulate = p.accumulate != 0;
  out->deterministic = orders_sums(p);
  bind_gradients(b, p, t, out);
  if (b.checks().ok()) b.checks().overlaps();
  return b.checks().take_status();
}

}  // namespace tilewise
