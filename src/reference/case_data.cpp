#include "reference/case_data.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/case_cache.h"
#include "reference/case_layout.h"
#include "reference/case_values.h"
#include "reference/elements.h"

namespace tilewise {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Row within its sequence of each row of a packed tensor (rows of no sequence: -1).
std::vector<int64_t> local_rows(const std::vector<int64_t>& cumulative, int64_t total) {
  std::vector<int64_t> local(static_cast<size_t>(total), -1);
  for (size_t b = 0; b + 1 < cumulative.size(); ++b) {
    for (int64_t row = std::max<int64_t>(0, cumulative[b]); row < std::min(total, cumulative[b + 1]); ++row) {
      local[static_cast<size_t>(row)] = row - cumulative[b];
    }
  }
  return local;
}

// Some negative.
void fill_scales(const Case& c, Random& random, CaseTensor* scales) {
  for_each_element(scales->view(), [&](const std::vector<int64_t>&, int64_t at, int64_t flat) {
    const double size = std::exp2(2.0 * random.uniform() - 1.0) / stored_unit(c.dtype_kv);
    static_cast<float*>(scales->data())[at] = static_cast<float>(flat % 5 == 4 ? -size : size);
  });
}

void fill_rows(const Case& c, const std::string& name, const std::vector<int64_t>& cumulative, Random& random,
               CaseTensor* tensor) {
  const Tensor& view = tensor->view();
  const bool packed = view.rank == 3;
  const std::vector<int64_t> local = packed ? local_rows(cumulative, view.shape[0]) : std::vector<int64_t>();
  for_each_element(view, [&](const std::vector<int64_t>& index, int64_t at, int64_t) {
    const size_t first = packed ? 0 : 1;
    const int64_t row = packed ? local[static_cast<size_t>(index[0])] : index[1];
    const double value =
        row < 0 ? kNaN : input_value(c, name, row, index[first + 1], index[first + 2], random);
    write_element(tensor->data(), tensor->dtype(), at, value * stored_unit(tensor->dtype()));
  });
}

DType or_else(DType dtype, DType otherwise) { return dtype == DType::none ? otherwise : dtype; }

}  // namespace

CaseData::CaseData(const Case& c, DType input_dtype, uint64_t random_seed)
    : source(c), dtype(input_dtype), seed(random_seed) {
  const Problem& s = source.problem;
  const bool packed_q = s.packed_q != 0, packed_kv = s.packed_kv != 0;
  const DType dtype_o = or_else(c.dtype_o, dtype), dtype_grad = or_else(c.dtype_grad, dtype);
  Random random(Random(seed).bits() ^ 1);

  const auto query_rows = [&](const char* name, DType type, int64_t dim) {
    return make_rows(c, name, type, packed_q, s.batch, s.seqlen_q, s.total_q, s.heads_q, dim);
  };
  const auto key_rows = [&](const char* name, DType type, int64_t dim) {
    const int64_t blocks = s.page_size > 0 ? s.num_pages : s.cache_slots > 0 ? s.cache_slots : s.batch;
    return make_rows(c, name, type, packed_kv, blocks, s.page_size > 0 ? s.page_size : s.seqlen_kv,
                     s.total_kv, s.heads_kv, dim);
  };
  q = query_rows("q", dtype, s.head_dim);
  const DType dtype_kv = or_else(c.dtype_kv, dtype);
  k = key_rows("k", dtype_kv, s.head_dim);
  v = key_rows("v", dtype_kv, s.head_dim_v);
  o = query_rows("o", dtype_o, s.head_dim_v);
  dout = query_rows("dout", dtype_o, s.head_dim_v);
  fill_rows(c, "q", c.cu_seqlens_q, random, &q);
  if (s.page_size > 0) page_table = make_page_table(c, seed);
  if (!c.cache_batch_idx.empty()) cache_batch_idx = make_integers(DType::i32, c.cache_batch_idx);
  if (is_quantized(dtype_kv)) {
    const int64_t blocks = packed_kv ? s.batch : k.view().shape[0],
                  rows = packed_kv ? s.seqlen_kv : k.view().shape[1];
    for (const auto& [name, scales] : {std::pair("k_scales", &k_scales), std::pair("v_scales", &v_scales)}) {
      *scales = make_scales(c, name, blocks, rows);
      fill_scales(c, random, scales);
    }
  }
  for (const auto& [name, tensor] : {std::pair("k", &k), std::pair("v", &v)}) {
    if (s.page_size > 0 || s.cache_slots > 0)
      fill_cache(params(Direction::forward), c, name, random, tensor);
    else
      fill_rows(c, name, c.cu_seqlens_kv, random, tensor);
  }
  fill_rows(c, "dout", c.cu_seqlens_q, random, &dout);

  if (packed_q) cu_seqlens_q = make_integers(c.cu_dtype, c.cu_seqlens_q);
  if (packed_kv) cu_seqlens_kv = make_integers(c.cu_dtype, c.cu_seqlens_kv);
  if (!c.q_lengths.empty()) q_lengths = make_integers(DType::i32, c.q_lengths);
  if (!c.kv_lengths.empty()) kv_lengths = make_integers(DType::i32, c.kv_lengths);
  if (!c.kv_starts.empty()) kv_starts = make_integers(DType::i32, c.kv_starts);
  if (!c.q_offset.empty()) q_offset = make_integers(DType::i32, c.q_offset);

  if (!c.bias_shape.empty()) {
    bias = make_scores(c, "bias", c.bias_shape, c.bias_dtype);
    for_each_element(bias.view(), [&](const std::vector<int64_t>& index, int64_t at, int64_t flat) {
      write_element(bias.data(), c.bias_dtype, at,
                    bias_value(c.bias_values, c.bias_dtype, index[2], index[3], flat, random));
    });
  }
  if (!c.mask_shape.empty()) {
    mask = make_scores(c, "mask", c.mask_shape, c.mask_bits ? DType::bit : DType::boolean);
    auto* bytes = static_cast<uint8_t*>(mask.data());
    for_each_element(mask.view(), [&](const std::vector<int64_t>& index, int64_t at, int64_t flat) {
      const bool open = mask_value(c.mask_values, index[2], index[3], flat, random);
      if (c.mask_bits) {
        const auto bit = static_cast<uint8_t>(1u << (at % 8));
        bytes[at / 8] = static_cast<uint8_t>(open ? bytes[at / 8] | bit : bytes[at / 8] & ~bit);
      } else {
        bytes[at] = open ? static_cast<uint8_t>(1 + flat % 3) : 0;  // anything but 0 is true
      }
    });
  }
  if (!c.segments.empty()) {
    const auto fill_segments = [&](bool packed, int64_t rows, int64_t total, CaseTensor* ids) {
      *ids = packed ? make_plain(DType::i32, {total}) : make_plain(DType::i32, {s.batch, rows});
      const int64_t count = packed ? total : s.batch * rows;
      for (int64_t n = 0; n < count; ++n) {
        static_cast<int32_t*>(ids->data())[n] =
            segment_id(c.segments, packed ? n : n % rows, packed ? total : rows, random);
      }
    };
    fill_segments(packed_q, s.seqlen_q, s.total_q, &segment_ids_q);
    fill_segments(packed_kv, s.seqlen_kv, s.total_kv, &segment_ids_kv);
  }
  if (!c.kv_ranges.empty()) {
    kv_ranges =
        packed_q ? make_plain(DType::i32, {s.total_q, 2}) : make_plain(DType::i32, {s.batch, s.seqlen_q, 2});
    const int64_t count = packed_q ? s.total_q : s.batch * s.seqlen_q;
    const std::vector<int64_t> local = packed_q ? local_rows(c.cu_seqlens_q, count) : std::vector<int64_t>();
    for (int64_t n = 0; n < count; ++n) {
      const int64_t row = packed_q ? std::max<int64_t>(0, local[static_cast<size_t>(n)]) : n % s.seqlen_q;
      const auto [first, last] = kv_range(c.kv_ranges, row, s.seqlen_kv, random);
      static_cast<int32_t*>(kv_ranges.data())[2 * n] = first;
      static_cast<int32_t*>(kv_ranges.data())[2 * n + 1] = last;
    }
  }
  if (!c.alibi.empty()) {
    alibi_slopes =
        c.alibi == "bh" ? make_plain(DType::f32, {s.batch, s.heads_q}) : make_plain(DType::f32, {s.heads_q});
    for_each_element(alibi_slopes.view(), [&](const std::vector<int64_t>& index, int64_t at, int64_t flat) {
      // The usual slopes 2^(-8 (h + 1) / heads), other ones for each sequence.
      const double h = static_cast<double>(index.back() + 1);
      const double slope = std::exp2(-8.0 * h / static_cast<double>(s.heads_q));
      static_cast<float*>(alibi_slopes.data())[at] =
          static_cast<float>(slope * (1.0 + 0.25 * static_cast<double>(flat / s.heads_q)));
    });
  }
  if (!c.sinks.empty()) {
    sinks = make_plain(DType::f32, {s.heads_q});
    for (int64_t h = 0; h < s.heads_q; ++h) {
      static_cast<float*>(sinks.data())[h] = sink_value(c.sinks, h, random);
    }
  }
  lse = make_stats(c, "lse");
  if (c.dlse) {
    dlse = make_stats(c, "dlse");
    for_each_element(dlse.view(), [&](const std::vector<int64_t>&, int64_t at, int64_t) {
      static_cast<float*>(dlse.data())[at] = static_cast<float>(random.normal());
    });
  }
  if (c.delta) delta = make_stats(c, "delta");

  const int32_t wants = s.wants != 0 ? s.wants : ~0;
  if ((wants & TILEWISE_WANT_DQ) != 0) dq = query_rows("dq", dtype_grad, s.head_dim);
  if ((wants & TILEWISE_WANT_DK) != 0) dk = key_rows("dk", dtype_grad, s.head_dim);
  if ((wants & TILEWISE_WANT_DV) != 0) dv = key_rows("dv", dtype_grad, s.head_dim_v);
  if ((wants & TILEWISE_WANT_DBIAS) != 0 && bias.present()) {
    dbias = make_scores(c, "dbias", c.bias_shape, c.bias_dtype);
  }
  if ((wants & TILEWISE_WANT_DSINKS) != 0 && sinks.present()) dsinks = make_plain(DType::f32, {s.heads_q});
  poison_outputs(Direction::backward, Poison::nan);
  if (c.poison_unseen) poison_what_nobody_sees(this);
}

std::vector<std::pair<std::string, CaseTensor*>> CaseData::outputs(Direction direction) {
  std::vector<std::pair<std::string, CaseTensor*>> all;
  if (direction == Direction::forward) {
    all = {{"o", &o}, {"lse", &lse}};
    if (!source.lse) all.pop_back();
    return all;
  }
  all = {{"dq", &dq}, {"dk", &dk}, {"dv", &dv}, {"dbias", &dbias}, {"dsinks", &dsinks}};
  std::erase_if(all, [](const auto& output) { return !output.second->present(); });
  return all;
}

void CaseData::poison_outputs(Direction direction, Poison poison) {
  for (auto& [name, tensor] : outputs(direction)) {
    tensor->fill(poison);
    const bool keeps_values = source.problem.accumulate != 0 && name.size() == 2 && name[0] == 'd';
    if (!keeps_values) continue;
    for_each_element(tensor->view(), [t = tensor](const std::vector<int64_t>&, int64_t at, int64_t flat) {
      write_element(t->data(), t->dtype(), at, static_cast<double>(flat % 17) / 16.0 - 0.5);
    });
  }
  for_each_tensor([](const char*, CaseTensor& tensor) { tensor.remember(); });
}

std::string CaseData::damage(Direction direction, const Expectation& expectation) {
  const auto written = outputs(direction);
  std::string found;
  for_each_tensor([&](const std::string& name, CaseTensor& tensor) {
    const bool is_output = std::any_of(written.begin(), written.end(),
                                       [&](const auto& output) { return output.second == &tensor; });
    const ExpectedOutput* expected = is_output ? expectation.find(name) : nullptr;
    const std::string changed = tensor.changed_outside(expected ? expected->address : std::vector<int64_t>());
    if (!changed.empty() && found.empty()) found = name + ": " + changed;
  });
  return found;
}

void CaseData::set_forward_result(const Expectation& forward) {
  o.fill(Poison::nan);
  lse.fill(Poison::nan);
  const ExpectedOutput& right_o = *forward.find("o");
  for (size_t e = 0; e < right_o.ref.size(); ++e) {
    write_element(o.data(), o.dtype(), right_o.address[e], right_o.ref[e]);
  }
  const ExpectedOutput& right_lse = *forward.find("lse");
  const RowStats stats = params(Direction::backward).lse;
  for (size_t e = 0; e < right_lse.ref.size(); ++e) {
    const auto head = static_cast<int64_t>(e) % right_lse.extent[1];
    const RowId id = right_lse.rows[e / static_cast<size_t>(right_lse.extent[1])];
    const int64_t begin = shape_of_sequence(params(Direction::backward), id.sequence).q_begin;
    stats.data[offset_of(stats, id.sequence, begin, id.row, head)] = static_cast<float>(right_lse.ref[e]);
  }
  if (!delta.present()) return;
  const BackwardParams p = params(Direction::backward);
  const RowTensor o_rows = params(Direction::forward).o;
  for (const RowId& id : all_query_rows(p)) {
    const SequenceShape shape = shape_of_sequence(p, id.sequence);
    if (id.row >= shape.q_length) continue;  // padding: delta stays NaN
    for (int64_t h = 0; h < p.heads_q; ++h) {
      double sum = 0.0;
      for (int64_t d = 0; d < p.head_dim_v; ++d) {
        sum += read_element(o_rows.data, o_rows.dtype,
                            offset_of(o_rows, id.sequence, shape.q_begin, id.row, h) + d) *
               read_element(p.dout.data, p.dout.dtype,
                            offset_of(p.dout, id.sequence, shape.q_begin, id.row, h) + d);
      }
      p.delta.data[offset_of(p.delta, id.sequence, shape.q_begin, id.row, h)] = static_cast<float>(sum);
    }
  }
}

Comparison compare_outputs(CaseData& data, Direction direction, const Expectation& expectation,
                           double units) {
  Comparison worst;
  worst.text = "nothing to compare";
  bool first = true;
  for (auto& [name, tensor] : data.outputs(direction)) {
    const ExpectedOutput* expected = expectation.find(name);
    if (expected == nullptr) continue;
    Comparison one = compare(*expected, tensor->data(), units);
    if (first || one.share > worst.share) worst = std::move(one);
    first = false;
  }
  return worst;
}

}  // namespace tilewise
