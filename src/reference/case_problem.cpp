// A case as the public API takes it (problem, tensors) and as kernels and the oracle do (params).

#include <cmath>
#include <numeric>

#include "core/dropout.h"
#include "reference/case_data.h"

namespace tilewise {
namespace {

RowTensor as_rows(CaseTensor& t) {
  if (!t.present()) return {};
  const Tensor& v = t.view();
  RowTensor rows;
  rows.data = t.data();
  rows.dtype = t.dtype();
  const int first = v.rank - 3;
  rows.batch_stride = v.rank == 4 ? v.stride[0] : 0;
  rows.row_stride = v.stride[first];
  rows.head_stride = v.stride[first + 1];
  return rows;
}

RowStats as_stats(CaseTensor& t) {
  if (!t.present()) return {};
  const Tensor& v = t.view();
  RowStats stats;
  stats.data = static_cast<float*>(t.data());
  stats.batch_stride = v.rank == 3 ? v.stride[0] : 0;
  stats.head_stride = v.stride[v.rank - 2];
  stats.row_stride = v.stride[v.rank - 1];
  return stats;
}

ScoreTensor as_scores(CaseTensor& t) {
  if (!t.present()) return {};
  const Tensor& v = t.view();
  const auto stride = [&](int n) { return v.shape[n] == 1 ? 0 : v.stride[n]; };
  return {t.data(), t.dtype(), stride(0), stride(1), stride(2), stride(3)};
}

CacheScales as_scales(const CaseTensor& t) {
  if (!t.present()) return {};
  const Tensor& v = t.view();
  const bool grouped = v.rank == 3;
  return {static_cast<const float*>(t.data()), v.stride[0], grouped ? v.stride[1] : 0,
          v.stride[grouped ? 2 : 1]};
}

IndexTensor as_index(CaseTensor& t, bool per_row, bool packed) {
  if (!t.present()) return {};
  const Tensor& v = t.view();
  IndexTensor index;
  index.data = t.data();
  index.dtype = t.dtype();
  if (!per_row) {
    index.batch_stride = 1;
    return index;
  }
  index.batch_stride = packed ? 0 : v.stride[0];
  index.row_stride = v.stride[packed ? 0 : 1];
  index.inner_stride = 1;
  return index;
}

}  // namespace

Problem CaseData::problem(Direction direction) const {
  Problem p = source.problem;
  p.direction = static_cast<int32_t>(direction);
  const bool backward = direction == Direction::backward;
  const auto type = [](const CaseTensor& t) { return t.present() ? t.view().dtype : TILEWISE_NONE; };
  p.dtype_q = type(q);
  p.dtype_k = type(k);
  p.dtype_v = type(v);
  p.dtype_o = type(o);
  p.dtype_bias = type(bias);
  p.dtype_mask = type(mask);
  for (int n = 0; n < 4; ++n) {
    if (bias.present()) p.bias_shape[n] = bias.view().shape[n];
    if (mask.present()) p.mask_shape[n] = mask.view().shape[n];
  }
  p.features = 0;
  const auto feature = [&](bool present, tilewise_feature bit) {
    if (present) p.features |= static_cast<uint32_t>(bit);
  };
  feature(bias.present(), TILEWISE_HAS_BIAS);
  feature(mask.present(), TILEWISE_HAS_MASK);
  feature(q_lengths.present(), TILEWISE_HAS_Q_LENGTHS);
  feature(kv_lengths.present(), TILEWISE_HAS_KV_LENGTHS);
  feature(kv_starts.present(), TILEWISE_HAS_KV_STARTS);
  feature(q_offset.present(), TILEWISE_HAS_Q_OFFSET);
  feature(cache_batch_idx.present(), TILEWISE_HAS_CACHE_BATCH_IDX);
  feature(k_scales.present(), TILEWISE_HAS_KV_SCALES);
  feature(segment_ids_q.present(), TILEWISE_HAS_SEGMENT_IDS);
  feature(kv_ranges.present(), TILEWISE_HAS_KV_RANGES);
  feature(alibi_slopes.present(), TILEWISE_HAS_ALIBI);
  feature(sinks.present(), TILEWISE_HAS_SINKS);
  feature(backward || source.lse, TILEWISE_HAS_LSE);
  p.alibi_per_batch = source.alibi == "bh" ? 1 : 0;
  p.alignment = 64;
  const auto align = [&](const CaseTensor& t) {
    if (!t.present()) return;
    const int64_t size = element_bytes(t.dtype());
    int64_t common = std::gcd<int64_t>(64, static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.view().data)));
    for (int n = 0; n + 1 < t.view().rank; ++n) {
      if (t.view().shape[n] != 1) common = std::gcd(common, t.view().stride[n] * size);
    }
    p.alignment = static_cast<int32_t>(std::gcd<int64_t>(p.alignment, common));
  };
  for (const CaseTensor* t : {&q, &k, &v, &o}) align(*t);
  p.wants = 0;
  if (!backward) {
    p.accumulate = 0;
    return p;
  }
  for (const CaseTensor* t : {&dout, &dq, &dk, &dv}) align(*t);
  p.dtype_dout = type(dout);
  p.dtype_dq = dq.present() ? type(dq) : p.dtype_q;
  p.dtype_dk = dk.present() ? type(dk) : p.dtype_k;
  p.dtype_dv = dv.present() ? type(dv) : p.dtype_v;
  p.dtype_dbias = type(dbias);
  feature(dlse.present(), TILEWISE_HAS_DLSE);
  feature(delta.present(), TILEWISE_HAS_DELTA);
  const auto want = [&](const CaseTensor& t, tilewise_gradient bit) {
    if (t.present()) p.wants |= static_cast<int32_t>(bit);
  };
  want(dq, TILEWISE_WANT_DQ);
  want(dk, TILEWISE_WANT_DK);
  want(dv, TILEWISE_WANT_DV);
  want(dbias, TILEWISE_WANT_DBIAS);
  want(dsinks, TILEWISE_WANT_DSINKS);
  return p;
}

Tensors CaseData::tensors(Direction direction) const {
  Tensors t{};
  const auto input = [](const CaseTensor& tensor) {
    return tensor.present() ? tensor.view_as_input() : Tensor();
  };
  t.q = input(q);
  t.k = input(k);
  t.v = input(v);
  t.bias = input(bias);
  t.mask = input(mask);
  t.q_lengths = input(q_lengths);
  t.kv_lengths = input(kv_lengths);
  t.kv_starts = input(kv_starts);
  t.q_offset = input(q_offset);
  t.cu_seqlens_q = input(cu_seqlens_q);
  t.cu_seqlens_kv = input(cu_seqlens_kv);
  t.page_table = input(page_table);
  t.cache_batch_idx = input(cache_batch_idx);
  t.k_scales = input(k_scales);
  t.v_scales = input(v_scales);
  t.segment_ids_q = input(segment_ids_q);
  t.segment_ids_kv = input(segment_ids_kv);
  t.kv_ranges = input(kv_ranges);
  t.alibi_slopes = input(alibi_slopes);
  t.sinks = input(sinks);
  t.q_offset_value = source.q_offset_value;
  t.dropout_seed = source.dropout_seed;
  t.dropout_offset = source.dropout_offset;
  if (direction == Direction::forward) {
    t.o = o.view();
    if (source.lse) t.lse = lse.view();
    return t;
  }
  t.lse = input(lse);
  if (delta.present()) {
    t.delta = input(delta);
  } else {
    t.o = input(o);
  }
  t.dout = input(dout);
  t.dlse = input(dlse);
  const auto output = [](const CaseTensor& tensor) { return tensor.present() ? tensor.view() : Tensor(); };
  t.dq = output(dq);
  t.dk = output(dk);
  t.dv = output(dv);
  t.dbias = output(dbias);
  t.dsinks = output(dsinks);
  return t;
}

BackwardParams CaseData::params(Direction direction) const {
  auto& self = const_cast<CaseData&>(*this);  // params point at memory that a run may write
  const Problem& s = source.problem;
  BackwardParams p;
  p.batch = s.batch;
  p.heads_q = s.heads_q;
  p.heads_kv = s.heads_kv;
  p.seqlen_q = s.seqlen_q;
  p.seqlen_kv = s.seqlen_kv;
  p.total_q = s.total_q;
  p.total_kv = s.total_kv;
  p.head_dim = s.head_dim;
  p.head_dim_v = s.head_dim_v;
  p.q = as_rows(self.q);
  p.k = as_rows(self.k);
  p.v = as_rows(self.v);
  p.bias = as_scores(self.bias);
  p.mask = as_scores(self.mask);
  p.q_lengths = as_index(self.q_lengths, false, false);
  p.kv_lengths = as_index(self.kv_lengths, false, false);
  p.kv_starts = as_index(self.kv_starts, false, false);
  p.q_offset = as_index(self.q_offset, false, false);
  p.cu_seqlens_q = as_index(self.cu_seqlens_q, false, false);
  p.cu_seqlens_kv = as_index(self.cu_seqlens_kv, false, false);
  p.page_table = as_index(self.page_table, true, false);
  p.page_size = s.page_size;
  p.num_pages = s.num_pages;
  p.cache_batch_idx = as_index(self.cache_batch_idx, false, false);
  p.cache_slots = s.cache_slots;
  p.k_scales = as_scales(self.k_scales);
  p.v_scales = as_scales(self.v_scales);
  p.scale_rows = s.scale_rows;
  p.segment_ids_q = as_index(self.segment_ids_q, true, s.packed_q != 0);
  p.segment_ids_kv = as_index(self.segment_ids_kv, true, s.packed_kv != 0);
  p.kv_ranges = as_index(self.kv_ranges, true, s.packed_q != 0);
  if (alibi_slopes.present()) {
    p.alibi_slopes = static_cast<const float*>(alibi_slopes.data());
    p.alibi_batch_stride = source.alibi == "bh" ? s.heads_q : 0;
    p.alibi_head_stride = 1;
  }
  if (sinks.present()) p.sinks = static_cast<const float*>(sinks.data());
  p.scale = std::isnan(s.softmax_scale) ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)))
                                        : s.softmax_scale;
  p.softcap = s.softcap;
  p.window_left = s.window_left;
  p.window_right = s.causal != 0 ? 0 : s.window_right;
  p.position = static_cast<tilewise_position>(s.position);
  p.q_offset_value = source.q_offset_value;
  p.dropout_threshold = dropout_threshold_of(s.dropout_p);
  p.dropout_seed = source.dropout_seed;
  p.dropout_offset = source.dropout_offset;
  if (direction == Direction::forward) {
    p.o = as_rows(self.o);
    if (source.lse) p.lse = as_stats(self.lse);
    return p;
  }
  p.lse = as_stats(self.lse);
  if (!delta.present()) p.o = as_rows(self.o);
  p.dout = as_rows(self.dout);
  p.dlse = as_stats(self.dlse);
  p.delta = as_stats(self.delta);
  p.dq = as_rows(self.dq);
  p.dk = as_rows(self.dk);
  p.dv = as_rows(self.dv);
  p.dbias = as_scores(self.dbias);
  if (bias.present()) {
    for (int n = 0; n < 4; ++n) p.bias_shape[n] = bias.view().shape[n];
  }
  if (dsinks.present()) p.dsinks = static_cast<float*>(self.dsinks.data());
  p.accumulate = s.accumulate != 0;
  return p;
}

}  // namespace tilewise
