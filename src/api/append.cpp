// append: new rows of k and v into a cache, k turned by its position and both quantised on the way where
// asked.
#include "api/append.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "api/bind.h"
#include "api/border.h"
#include "api/device_values.h"
#include "api/run.h"
#include "core/element.h"
#include "core/validate.h"
#include "cuda/runtime.h"

namespace tilewise {
namespace {

Status wrong(std::string sentence) { return {Code::invalid, std::move(sentence)}; }

RowTensor rows_of(const tilewise_tensor& t) {
  return {t.data, type_of(t), stride_of(t, 0), stride_of(t, 1), stride_of(t, 2)};
}

IndexTensor index_of(const tilewise_tensor& t, bool rows) {
  return {t.data, type_of(t), stride_of(t, 0), rows ? stride_of(t, 1) : 0, 0};
}

bool bind_rotary(TensorChecks& checks, const tilewise_append& a, AppendParams* out) {
  if (!present(a.rotary_cos) && !present(a.rotary_sin)) {
    if (a.rotary_interleaved)
      return checks.fail(
          "rotary_interleaved is 1 without rotary_cos and rotary_sin; accepted: 0, or both tensors");
    return true;
  }
  const char* labels = "[positions, rotary_dim / 2]";
  if (!checks.require("rotary_cos", a.rotary_cos) || !checks.require("rotary_sin", a.rotary_sin) ||
      !checks.rank("rotary_cos", a.rotary_cos, 2, labels))
    return false;
  const Shape shape{2, {a.rotary_cos.shape[0], a.rotary_cos.shape[1], 0, 0}, labels};
  for (const auto& [name, t] :
       {std::pair("rotary_cos", &a.rotary_cos), std::pair("rotary_sin", &a.rotary_sin)}) {
    if (!checks.dtype(name, *t, {DType::f32, DType::f16, DType::bf16}) ||
        !checks.layout(name, *t, shape, {Access::input, true, 1}))
      return false;
  }
  out->positions = a.rotary_cos.shape[0];
  if (a.rotary_cos.shape[1] > out->dim / 2)
    return checks.fail(cat("rotary_cos has rotary_dim / 2 = ", a.rotary_cos.shape[1],
                           "; accepted: up to head_dim / 2 = ", out->dim / 2));
  out->rotary_dim = 2 * a.rotary_cos.shape[1];
  if (a.rotary_interleaved != 0 && a.rotary_interleaved != 1)
    return checks.fail(
        cat("rotary_interleaved is ", a.rotary_interleaved, "; accepted: 0 (half-split) or 1"));
  out->interleaved = a.rotary_interleaved != 0;
  const auto table_of = [](const tilewise_tensor& t) {
    return RowTensor{t.data, type_of(t), 0, stride_of(t, 0), 0};
  };
  out->cos = table_of(a.rotary_cos);
  out->sin = table_of(a.rotary_sin);
  return true;
}

// Scales of a quantised cache: needed for i8, read unless they are asked for.
bool bind_append_scales(TensorChecks& checks, const tilewise_append& a, int64_t blocks, int64_t rows,
                        AppendParams* out) {
  const bool scales = present(a.k_scales) || present(a.v_scales);
  if (Status s = check_quantized("", type_of(a.k), type_of(a.v), scales); !s.ok())
    return checks.fail(s.message());
  if (a.write_scales != 0 && a.write_scales != 1)
    return checks.fail(cat("write_scales is ", a.write_scales, "; accepted: 0 or 1"));
  if (a.scale_rows < 0 || (!scales && (a.scale_rows || a.write_scales)))
    return checks.fail(cat("scale_rows is ", a.scale_rows, " and write_scales ", a.write_scales,
                           scales ? "" : " without k_scales", "; accepted: 0, or more with k_scales"));
  if (a.write_scales && a.scale_rows != 1)
    return checks.fail(cat("write_scales is 1 with scale_rows ", a.scale_rows,
                           "; accepted: scale_rows 1, as a scale that rows share stays what it was for the "
                           "earlier ones"));
  if (!is_quantized(type_of(a.k)) || (!scales && a.k.dtype == TILEWISE_F8E4M3)) return true;
  const Access access = a.write_scales ? Access::output : Access::input;
  if (!checks.require("k_scales", a.k_scales) || !checks.require("v_scales", a.v_scales) ||
      !bind_scales(checks, "k_scales", a.k_scales, blocks, rows, out->heads, a.scale_rows, access,
                   &out->cache.k_scales) ||
      !bind_scales(checks, "v_scales", a.v_scales, blocks, rows, out->heads, a.scale_rows, access,
                   &out->cache.v_scales))
    return false;
  out->cache.scale_rows = a.scale_rows;
  if (a.write_scales) {
    out->k_scales_out = static_cast<float*>(a.k_scales.data);
    out->v_scales_out = static_cast<float*>(a.v_scales.data);
  }
  return true;
}

Status bind(const tilewise_append& a, AppendParams* out) {
  if (a.struct_bytes != sizeof a)
    return wrong(cat("append.struct_bytes is ", a.struct_bytes, "; accepted: ", sizeof a,
                     " (start from tilewise_append_init of the same library version)"));
  TensorChecks checks(a.k.device_kind, a.k.device_index);  // all where the cache is
  const char* new_labels = "[batch, rows, heads_kv, head_dim]";
  const bool paged = present(a.page_table), slots = present(a.cache_batch_idx);
  const char* labels = paged ? "[num_pages, page_size, heads_kv, head_dim]"
                             : "[batch or cache_slots, seqlen_kv, heads_kv, head_dim]";
  if (!checks.require("k_new", a.k_new) || !checks.require("v_new", a.v_new) || !checks.require("k", a.k) ||
      !checks.require("v", a.v) || !checks.require("starts", a.starts) ||
      !checks.rank("k_new", a.k_new, 4, new_labels) || !checks.rank("v_new", a.v_new, 4, new_labels) ||
      !checks.rank("k", a.k, 4, labels) || !checks.rank("v", a.v, 4, labels))
    return checks.take_status();
  if (paged && slots) return wrong("cache_batch_idx comes with page_table; accepted: one of them");
  out->batch = a.k_new.shape[0];
  out->rows = a.k_new.shape[1];
  out->heads = a.k_new.shape[2];
  out->dim = a.k_new.shape[3];
  out->dim_v = a.v_new.shape[3];
  const int64_t blocks = paged || slots ? a.k.shape[0] : out->batch, rows = a.k.shape[1];
  const Rules read{Access::input, true, 1}, written{Access::output, true, 1};
  const struct {
    const char* name;
    const tilewise_tensor& t;
    Shape shape;
    Rules rules;
  } tensors[] = {{"k_new", a.k_new, {4, {out->batch, out->rows, out->heads, out->dim}, new_labels}, read},
                 {"v_new", a.v_new, {4, {out->batch, out->rows, out->heads, out->dim_v}, new_labels}, read},
                 {"k", a.k, {4, {blocks, rows, out->heads, out->dim}, labels}, written},
                 {"v", a.v, {4, {blocks, rows, out->heads, out->dim_v}, labels}, written}};
  for (const auto& t : tensors) {
    const bool cache = t.rules.access == Access::output;
    if (cache ? !checks.dtype(t.name, t.t, {DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::i8})
              : !checks.dtype(t.name, t.t, {DType::f32, DType::f16, DType::bf16}))
      return checks.take_status();
    if (!checks.layout(t.name, t.t, t.shape, t.rules)) return checks.take_status();
  }
  if (!bind_append_scales(checks, a, blocks, rows, out)) return checks.take_status();
  const Shape per_sequence{1, {out->batch, 0, 0, 0}, "[batch]"};
  const struct {
    const char* name;
    const tilewise_tensor& t;
  } indices[] = {{"starts", a.starts}, {"lengths", a.lengths}, {"cache_batch_idx", a.cache_batch_idx}};
  for (const auto& i : indices) {
    if (!present(i.t)) continue;
    if (!checks.dtype(i.name, i.t, {DType::i32}) || !checks.layout(i.name, i.t, per_sequence, {}))
      return checks.take_status();
  }
  ForwardParams& c = out->cache;
  c.seqlen_kv = rows;
  if (paged) {
    if (!checks.rank("page_table", a.page_table, 2, "[batch, max_pages]") ||
        !checks.dtype("page_table", a.page_table, {DType::i32}) ||
        !checks.layout("page_table", a.page_table,
                       {2, {out->batch, a.page_table.shape[1], 0, 0}, "[batch, max_pages]"}, {}))
      return checks.take_status();
    if (rows < 1) return wrong("k has pages of 0 rows; accepted: 1 or more, with page_table");
    c.page_table = index_of(a.page_table, true);
    c.page_size = rows;
    c.num_pages = blocks;
    if (__builtin_mul_overflow(a.page_table.shape[1], rows, &c.seqlen_kv))
      return wrong("page_table and k give sequences of more than 2^63 rows; accepted: fewer");
  }
  if (slots) {
    c.cache_batch_idx = index_of(a.cache_batch_idx, false);
    c.cache_slots = blocks;
  }
  c.k = rows_of(a.k);
  c.v = rows_of(a.v);
  out->k_new = rows_of(a.k_new);
  out->v_new = rows_of(a.v_new);
  out->starts = index_of(a.starts, false);
  if (present(a.lengths)) out->lengths = index_of(a.lengths, false);
  if (!bind_rotary(checks, a, out) || !checks.overlaps()) return checks.take_status();
  return {};
}

// Every target exists and belongs to one new row alone.
Status check_targets(const AppendParams& a) {
  const auto range = [](const char* name, int64_t b, int64_t value, int64_t most, const char* what) {
    return wrong(cat(name, "[", b, "] is ", value, "; accepted: 0 to ", most, ", ", what));
  };
  std::unordered_map<int64_t, int64_t> owner;  // of a row of the cache: the sequence that writes it
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t count = a.count(b), start = read_index(a.starts, b);
    if (count < 0 || count > a.rows) return range("lengths", b, count, a.rows, "the rows of k_new");
    if (start < 0 || start > a.capacity() - count)
      return range(
          "starts", b, start, a.capacity() - count,
          a.cache.page_size ? "so that the new rows end within its pages" : "so that they end within k");
    if (a.rotary_dim > 0 && start + count > a.positions)
      return wrong(cat("rotary_cos has ", a.positions, " positions; accepted: ", start + count,
                       " or more, as sequence ", b, " reaches there"));
    if (a.cache.cache_batch_idx.data) {
      const int64_t slot = read_index(a.cache.cache_batch_idx, b);
      if (slot < 0 || slot >= a.cache.cache_slots)
        return range("cache_batch_idx", b, slot, a.cache.cache_slots - 1, "the slots of k");
    }
    for (int64_t j = start; j < start + count; ++j) {
      if (a.cache.page_size) {
        const int64_t entry = j / a.cache.page_size, page = read_index(a.cache.page_table, b, entry);
        if (page < 0 || page >= a.cache.num_pages)
          return wrong(cat("page_table of sequence ", b, " entry ", entry, " is ", page, "; accepted: 0 to ",
                           a.cache.num_pages - 1, ", the pages of k"));
      }
      const KeyRun run = key_run(a.cache, Sequence(), b, j, 1);
      const int64_t width = a.cache.page_size ? a.cache.page_size : a.cache.seqlen_kv;
      const auto [at, first] = owner.emplace(run.block * width + run.row, b);
      if (first) continue;
      return wrong(cat("sequences ", at->second, " and ", b, " both write row ", run.row, " of ",
                       a.cache.page_size ? "page " : "slot ", run.block,
                       "; accepted: new rows of which each has its own place"));
    }
  }
  return {};
}

// Element d of a new key, turned by the angle of its position.
float key_element(const AppendParams& a, int64_t at, int64_t d, int64_t position) {
  const auto load = [&](const RowTensor& t, int64_t from) { return load_element(t.data, t.dtype, from); };
  if (d >= a.rotary_dim) return load(a.k_new, at + d);
  const RotaryPair pair = rotary_pair(a, d);
  const float c = load(a.cos, position * a.cos.row_stride + pair.turn),
              s = load(a.sin, position * a.sin.row_stride + pair.turn);
  const float x = load(a.k_new, at + pair.x), y = load(a.k_new, at + pair.y);
  return d == pair.x ? x * c - y * s : x * s + y * c;
}

// One head's row of k or v, element(d) for d < dim, into the cache.
template <typename Element>
void store_row(const AppendParams& a, const RowTensor& t, const CacheScales& scales, float* scales_out,
               const KeyRun& to, int64_t head, int64_t dim, Element&& element) {
  const int64_t at = t.at(to.block, to.row, head), group = scale_group(a.cache, Sequence(), to);
  float scale = scales.at(to.block, group, head);
  if (scales_out) {
    float largest = 0.0f;
    bool bad = false;
    for (int64_t d = 0; d < dim; ++d) {
      const float value = element(d);
      largest = std::max(largest, std::fabs(value));
      bad |= value != value;
    }
    scale = bad ? std::numeric_limits<float>::quiet_NaN() : largest / largest_stored(t.dtype);
    scales_out[to.block * scales.block_stride + group * scales.group_stride + head * scales.head_stride] =
        scale;
  }
  const float factor = is_quantized(t.dtype) ? inverse_of(scale) : 1.0f;
  for (int64_t d = 0; d < dim; ++d) store_element(t.data, t.dtype, at + d, element(d) * factor);
}

void append_all(const AppendParams& a, Executor& executor) {
  executor.run(a.batch * a.rows, executor.workers(), [&](int64_t index, int) {
    const int64_t b = index / a.rows, i = index % a.rows;
    if (i >= a.count(b)) return;
    const int64_t position = read_index(a.starts, b) + i;
    const KeyRun run = key_run(a.cache, Sequence(), b, position, 1);
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t k_at = a.k_new.at(b, i, h), v_at = a.v_new.at(b, i, h);
      store_row(a, a.cache.k, a.cache.k_scales, a.k_scales_out, run, h, a.dim,
                [&](int64_t d) { return key_element(a, k_at, d, position); });
      store_row(a, a.cache.v, a.cache.v_scales, a.v_scales_out, run, h, a.dim_v,
                [&](int64_t d) { return load_element(a.v_new.data, a.v_new.dtype, v_at + d); });
    }
  });
}

}  // namespace

Status check_append(const tilewise_context& context, const tilewise_append& append, void* stream,
                    AppendParams* params) {
  const bool device = append.k.device_kind == TILEWISE_CUDA;
  if (!device && append.k.device_kind != TILEWISE_CPU)
    return wrong(cat("k has device kind ", append.k.device_kind, "; accepted: 0 (CPU), 1 (CUDA)"));
  if (!device && stream) return wrong("stream is given for host tensors; accepted: NULL");
  if (Status s = bind(append, params); !s.ok()) return s;
  if (!device) return check_targets(*params);
  if (!context.options.check_data) return {};  // clamped where they are read
  return check_device_values(append.k.device_index, *params, check_targets);
}

// What is appended to is what is read.
Status check_cache_is_read(const tilewise_append& append, const tilewise_tensors& tensors) {
  if (append.k.data == tensors.k.data && append.v.data == tensors.v.data) return {};
  return wrong("append writes another k or v than tensors hold; accepted: the cache that is read");
}

Status run_append(const tilewise_context& context, const tilewise_append& append, const AppendParams& params,
                  void* stream) {
  if (append.k.device_kind == TILEWISE_CUDA) return cuda::append(append.k.device_index, stream, params);
  append_all(params, *context.executor);
  return {};
}

}  // namespace tilewise

void tilewise_append_init(tilewise_append* append) {
  if (!append) return;
  *append = tilewise_append{};
  append->struct_bytes = sizeof *append;
}

tilewise_code tilewise_cache_append(tilewise_context* context, const tilewise_append* append, void* stream,
                                    tilewise_error* error) {
  using namespace tilewise;
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!append) return null_argument("append");
    AppendParams params;
    if (Status s = check_append(*context, *append, stream, &params); !s.ok()) return s;
    return run_append(*context, *append, params, stream);
  });
}

tilewise_code tilewise_append_forward(tilewise_context* context, const tilewise_plan* plan,
                                      const tilewise_append* append, const tilewise_tensors* tensors,
                                      tilewise_workspace workspace, void* stream, tilewise_error* error) {
  using namespace tilewise;
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!plan) return null_argument("plan");
    if (!append) return null_argument("append");
    if (!tensors) return null_argument("tensors");
    if (Status s = check_cache_is_read(*append, *tensors); !s.ok()) return s;
    AppendParams params;
    if (Status s = check_append(*context, *append, stream, &params); !s.ok()) return s;
    return run_forward(*context, *plan, *tensors, workspace, stream,
                       [&] { return run_append(*context, *append, params, stream); });
  });
}

tilewise_code tilewise_append_attention(tilewise_context* context, const tilewise_append* append,
                                        const tilewise_problem* options, const tilewise_tensors* tensors,
                                        void* stream, tilewise_error* error) {
  using namespace tilewise;
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!append) return null_argument("append");
    if (!options) return null_argument("options");
    if (!tensors) return null_argument("tensors");
    if (options->direction != TILEWISE_FORWARD)
      return wrong(
          cat("options.direction is ", options->direction, "; accepted: 0 (forward), with new rows"));
    if (Status s = check_cache_is_read(*append, *tensors); !s.ok()) return s;
    AppendParams params;
    if (Status s = check_append(*context, *append, stream, &params); !s.ok()) return s;
    return run_attention(*context, *options, *tensors, stream,
                         [&] { return run_append(*context, *append, params, stream); });
  });
}
