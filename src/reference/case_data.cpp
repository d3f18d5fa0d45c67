#include "reference/case_data.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "reference/case_cache.h"
#include "reference/case_values.h"
#include "reference/elements.h"

namespace tilewise {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Placement {
  std::vector<int64_t> shape, stride;
  int64_t lead = 0;
};

std::string layout_of(const Case& c, const std::string& tensor) {
  const auto own = c.layouts.find(tensor);
  if (own != c.layouts.end()) return own->second;
  const auto all = c.layouts.find("");
  return all != c.layouts.end() ? all->second : "bshd";
}

// [batch, rows, heads, dim] (packed: [rows, heads, dim]) in the layout that the case asks for.
Placement place_rows(const Case& c, const std::string& tensor, std::vector<int64_t> shape) {
  Placement place;
  place.shape = shape;
  place.stride = row_major(shape);
  const size_t first = shape.size() - 3;  // index of rows
  const int64_t rows = shape[first], heads = shape[first + 1], dim = shape[first + 2];
  const std::string layout = layout_of(c, tensor);
  int64_t& row_stride = place.stride[first];
  int64_t& head_stride = place.stride[first + 1];
  if (layout == "bhsd") {
    row_stride = dim;
    head_stride = rows * dim;
  } else if (layout == "sliced") {
    head_stride = dim + 3;
    row_stride = heads * head_stride + 5;
    if (first == 1) place.stride[0] = rows * row_stride + 7;
    place.lead = 2;
  } else if (layout == "apart") {  // rows on whole vectors, most heads not
    head_stride = dim + 4;
    row_stride = (heads * head_stride + 15) / 16 * 16;
    if (first == 1) place.stride[0] = rows * row_stride;
  } else if (layout == "qkv") {
    row_stride = 3 * heads * dim;
    if (first == 1) place.stride[0] = rows * row_stride;
    place.lead =
        (tensor == "v" || tensor == "dv" ? 2 : (tensor == "k" || tensor == "dk" ? 1 : 0)) * heads * dim;
  } else if (layout == "seqfirst" && first == 1) {
    place.stride[0] = heads * dim;
    row_stride = shape[0] * heads * dim;
  } else if (layout == "offset1") {
    place.lead = 1;
  } else if (layout == "expanded" && first == 1) {
    place.stride[0] = 0;
  } else if (layout == "expanded_heads") {
    head_stride = 0;
    row_stride = dim;
    if (first == 1) place.stride[0] = rows * dim;
  }
  return place;
}

CaseTensor make_rows(const Case& c, const std::string& name, DType dtype, bool packed, int64_t batch,
                     int64_t rows, int64_t total, int64_t heads, int64_t dim) {
  std::vector<int64_t> shape{batch, rows, heads, dim};
  if (packed) shape = {total, heads, dim};
  const Placement place = place_rows(c, name, shape);
  return CaseTensor(dtype, place.shape, place.stride, place.lead);
}

// f32 [batch, heads, rows] (packed: [heads, total]); layout "rows_first" puts heads innermost.
CaseTensor make_stats(const Case& c, const std::string& name) {
  const Problem& p = c.problem;
  std::vector<int64_t> shape{p.batch, p.heads_q, p.seqlen_q};
  if (p.packed_q != 0) shape = {p.heads_q, p.total_q};
  std::vector<int64_t> stride = row_major(shape);
  if (layout_of(c, name) == "rows_first") {
    stride[stride.size() - 1] = p.heads_q;
    stride[stride.size() - 2] = 1;
  }
  return CaseTensor(DType::f32, shape, stride, 0);
}

CaseTensor make_plain(DType dtype, std::vector<int64_t> shape) {
  const std::vector<int64_t> stride = row_major(shape);
  return CaseTensor(dtype, std::move(shape), stride, 0);
}

// "b1qk" -> sizes; layout "padded" leaves five elements between rows.
CaseTensor make_scores(const Case& c, const std::string& name, const std::string& letters, DType dtype) {
  const Problem& p = c.problem;
  const int64_t sizes[4] = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_kv};
  std::vector<int64_t> shape(4);
  for (size_t n = 0; n < 4; ++n) shape[n] = letters[n] == '1' ? 1 : sizes[n];
  std::vector<int64_t> stride = row_major(shape);
  if (layout_of(c, name) == "padded") {
    stride[2] = shape[3] + 5;
    stride[1] = stride[2] * shape[2];
    stride[0] = stride[1] * shape[1];
  }
  return CaseTensor(dtype, shape, stride, 0);
}

CaseTensor make_integers(DType dtype, const std::vector<int64_t>& values) {
  CaseTensor tensor = make_plain(dtype, {static_cast<int64_t>(values.size())});
  for (size_t n = 0; n < values.size(); ++n) {
    if (dtype == DType::i64) {
      static_cast<int64_t*>(tensor.data())[n] = values[n];
    } else {
      static_cast<int32_t*>(tensor.data())[n] = static_cast<int32_t>(values[n]);
    }
  }
  return tensor;
}

// f32 [blocks, heads] or [blocks, groups, heads], some negative; layout "padded" leaves gaps.
CaseTensor make_scales(const Case& c, const char* name, int64_t blocks, int64_t rows, Random& random) {
  const Problem& p = c.problem;
  std::vector<int64_t> shape{blocks, p.heads_kv};
  if (p.scale_rows > 0) shape = {blocks, (rows + p.scale_rows - 1) / p.scale_rows, p.heads_kv};
  std::vector<int64_t> stride = row_major(shape);
  if (layout_of(c, name) == "padded") {
    for (int64_t& s : stride) s *= 3;
  }
  CaseTensor scales(DType::f32, shape, stride, 0);
  for_each_element(scales.view(), [&](const std::vector<int64_t>&, int64_t at, int64_t flat) {
    const double size = std::exp2(2.0 * random.uniform() - 1.0) / stored_unit(c.dtype_kv);
    static_cast<float*>(scales.data())[at] = static_cast<float>(flat % 5 == 4 ? -size : size);
  });
  return scales;
}

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

void poison_row(CaseTensor* tensor, int64_t offset, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) write_element(tensor->data(), tensor->dtype(), offset + d, kNaN);
}

// NaN wherever no row may look: that must change no bit.
void poison_what_nobody_sees(CaseData* data) {
  const BackwardParams p = data->params(Direction::backward);
  const bool has_bias = data->bias.present();
  std::vector<uint8_t> bias_seen;
  const auto bias_flat = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t index[4] = {b, h, i, j};
    int64_t flat = 0;
    for (int n = 0; n < 4; ++n) {
      const int64_t size = data->bias.view().shape[n];
      flat = flat * size + (size == 1 ? 0 : index[n]);
    }
    return static_cast<size_t>(flat);
  };
  if (has_bias) {
    const Tensor& view = data->bias.view();
    bias_seen.assign(static_cast<size_t>(view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3]), 0);
  }
  const bool is_cache = p.page_size > 0 || p.cache_slots > 0;
  const bool expanded_k = p.k.batch_stride == 0 && p.batch > 1 && p.cu_seqlens_kv.data == nullptr;
  const bool expanded_v = p.v.batch_stride == 0 && p.batch > 1 && p.cu_seqlens_kv.data == nullptr;
  const bool shared_k = expanded_k || (p.k.head_stride == 0 && p.heads_kv > 1);
  const bool shared_v = expanded_v || (p.v.head_stride == 0 && p.heads_kv > 1);
  struct Key {
    int64_t b, kv_head, j;
  };
  std::vector<Key> unseen;
  std::unordered_set<int64_t> seen_at;  // offsets in k: sequences may share a page or a slot
  std::unordered_set<int64_t> scales_seen;
  for (int64_t b = 0; b < p.batch; ++b) {
    const SequenceShape s = shape_of_sequence(p, b);
    for (int64_t kv_head = 0; kv_head < p.heads_kv; ++kv_head) {
      for (int64_t j = 0; j < s.kv_rows; ++j) {
        if (!has_memory(p, b, j)) continue;
        bool seen = false;
        for (int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
          for (int64_t i = 0; i < s.q_length; ++i) {
            if (!sees(p, s, b, h, i, j)) continue;
            seen = true;
            if (has_bias) bias_seen[bias_flat(b, h, i, j)] = 1;
            if (!has_bias) break;
          }
          if (seen && !has_bias) break;
        }
        if (seen) {
          seen_at.insert(offset_of_key(p, p.k, s, b, j, kv_head));
          if (p.k_scales.data) scales_seen.insert(offset_of_scale(p, p.k_scales, b, j, kv_head));
        } else {
          unseen.push_back({b, kv_head, j});
        }
      }
    }
    const bool shared_q = p.q.batch_stride == 0 && p.batch > 1 && p.cu_seqlens_q.data == nullptr;
    const bool shared_dout = p.dout.batch_stride == 0 && p.batch > 1 && p.cu_seqlens_q.data == nullptr;
    for (int64_t i = s.q_length; i < s.q_rows; ++i) {
      for (int64_t h = 0; h < p.heads_q; ++h) {
        if (!shared_q) poison_row(&data->q, offset_of(p.q, b, s.q_begin, i, h), p.head_dim);
        if (!shared_dout) poison_row(&data->dout, offset_of(p.dout, b, s.q_begin, i, h), p.head_dim_v);
      }
    }
  }
  for (CaseTensor* scales : {&data->k_scales, &data->v_scales}) {
    if (!scales->present()) continue;
    for_each_element(scales->view(), [&](const std::vector<int64_t>&, int64_t at, int64_t) {
      if (!scales_seen.contains(at)) static_cast<float*>(scales->data())[at] = static_cast<float>(kNaN);
    });
  }
  for (const Key& key : unseen) {
    const SequenceShape s = shape_of_sequence(p, key.b);
    const int64_t at = offset_of_key(p, p.k, s, key.b, key.j, key.kv_head);
    if (is_cache && seen_at.contains(at)) continue;
    if (!shared_k) poison_row(&data->k, at, p.head_dim);
    if (!shared_v) poison_row(&data->v, offset_of_key(p, p.v, s, key.b, key.j, key.kv_head), p.head_dim_v);
  }
  if (!has_bias) return;
  for_each_element(data->bias.view(), [&](const std::vector<int64_t>&, int64_t at, int64_t flat) {
    const double value = read_element(data->bias.data(), data->bias.dtype(), at);
    if (bias_seen[static_cast<size_t>(flat)] == 0 && std::isfinite(value)) {
      write_element(data->bias.data(), data->bias.dtype(), at, kNaN);
    }
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
    k_scales = make_scales(c, "k_scales", blocks, rows, random);
    v_scales = make_scales(c, "v_scales", blocks, rows, random);
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
