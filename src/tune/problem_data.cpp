#include "tune/problem_data.h"

#include <utility>

#include "api/context.h"
#include "core/dropout.h"
#include "core/element.h"
#include "cuda/runtime.h"

namespace tilewise::tune {
namespace {

constexpr size_t kAlign = 64;
constexpr float kUniformScale = 1.7320508f / 65536.0f;  // four uniform 16-bit numbers: variance 65536^2 / 3

constexpr float kQuantum = 1.0f / 32.0f;  // of i8: 127 of them hold four standard deviations

float normal_of(uint64_t bits) {
  const auto part = [&](int shift) { return static_cast<int32_t>((bits >> shift) & 0xffff); };
  return kUniformScale * static_cast<float>(part(0) + part(16) + part(32) + part(48) - 2 * 65535);
}

int64_t tensor_bytes(DType dtype, std::initializer_list<int64_t> shape) {
  int64_t count = 1;
  for (int64_t n : shape) count *= n;
  return count * bits_of(dtype) / 8;
}

}  // namespace

Problem make_problem(const ProblemSize& size) {
  Problem p;
  p.direction = static_cast<int32_t>(size.direction);
  p.batch = size.batch;
  p.heads_q = size.heads_q;
  p.heads_kv = size.heads_kv;
  p.head_dim = size.head_dim;
  p.head_dim_v = size.head_dim_v;
  p.seqlen_q = size.seqlen_q;
  p.seqlen_kv = size.seqlen_kv;
  const auto dtype = static_cast<int32_t>(size.dtype);
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = p.dtype_dout = p.dtype_dq = p.dtype_dk = p.dtype_dv = dtype;
  if (size.cache_dtype != DType::none) {
    p.dtype_k = p.dtype_v = static_cast<int32_t>(size.cache_dtype);
    p.features |= TILEWISE_HAS_KV_SCALES;
  }
  p.causal = size.causal;
  p.position = static_cast<int32_t>(size.position);
  p.window_left = size.window_left;
  p.window_right = size.window_right;
  if (size.page_size > 0) {
    p.page_size = size.page_size;
    p.max_pages = (size.seqlen_kv + size.page_size - 1) / size.page_size;
    p.num_pages = p.max_pages * size.batch;
  }
  p.alignment = alignment_of(static_cast<DType>(p.dtype_k), size.head_dim, size.head_dim_v);
  if (size.direction == Direction::backward) p.wants = TILEWISE_WANT_DQ | TILEWISE_WANT_DK | TILEWISE_WANT_DV;
  return p;
}

Problem forward_of(const Problem& backward) {
  Problem p = backward;
  p.direction = TILEWISE_FORWARD;
  p.wants = 0;
  p.features |= TILEWISE_HAS_LSE;
  return p;
}

int32_t alignment_of(DType dtype, int64_t head_dim, int64_t head_dim_v) {
  int32_t alignment = kAlign;
  while (alignment > 1 &&
         (head_dim * bits_of(dtype) / 8 % alignment != 0 || head_dim_v * bits_of(dtype) / 8 % alignment != 0))
    alignment /= 2;
  return alignment;
}

void fill_normal(void* data, DType dtype, int64_t count, uint64_t seed) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal_of(mix64(seed + static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15ull));
    store_element(data, dtype, i, dtype == DType::i8 ? value / kQuantum : value);
  }
}

double value_at(const tilewise_tensor& tensor, int64_t i) {
  return load_element(tensor.data, static_cast<DType>(tensor.dtype), i);
}

int64_t ProblemData::bytes_of(const Problem& p) {
  const auto q = static_cast<DType>(p.dtype_q);
  const int64_t of_q = tensor_bytes(q, {p.batch, p.seqlen_q, p.heads_q, p.head_dim});
  const int64_t of_o = tensor_bytes(q, {p.batch, p.seqlen_q, p.heads_q, p.head_dim_v});
  const int64_t keys = p.page_size > 0 ? p.num_pages * p.page_size : p.batch * p.seqlen_kv;
  const int64_t of_k = tensor_bytes(static_cast<DType>(p.dtype_k), {keys, p.heads_kv, p.head_dim});
  const int64_t of_v = tensor_bytes(static_cast<DType>(p.dtype_v), {keys, p.heads_kv, p.head_dim_v});
  const int64_t twice = p.direction == TILEWISE_BACKWARD ? 2 : 1;
  return twice * (of_q + of_o + of_k + of_v) + 4 * p.batch * p.heads_q * p.seqlen_q;
}

bool ProblemData::add_pages(uint64_t seed) {
  if (problem_.page_size == 0) return true;
  if (!add(tensors_.page_table, DType::i32, {problem_.batch, problem_.max_pages})) return false;
  auto* pages = static_cast<int32_t*>(tensors_.page_table.data);
  for (int64_t i = 0; i < problem_.num_pages; ++i) {
    const auto count = static_cast<uint64_t>(i + 1);
    const auto other = static_cast<int64_t>(mix64(seed + count) % count);
    pages[i] = pages[other];
    pages[other] = static_cast<int32_t>(i);
  }
  return true;
}

bool ProblemData::add(tilewise_tensor& tensor, DType dtype, std::initializer_list<int64_t> shape) {
  const auto bytes = static_cast<size_t>(tensor_bytes(dtype, shape));
  // Tensors that all began on a boundary of 2 MB would compete for the same sets of the caches.
  const size_t skew = memory_.size() * 65 * kAlign;
  Pages data = allocate_pages(bytes + skew);
  if (!data) return false;
  tensor = Tensor(data.get() + skew, dtype, shape);
  memory_.push_back(std::move(data));
  return true;
}

Expected<ProblemData> ProblemData::make(const Context& context, const Problem& p, uint64_t seed) {
  ProblemData data;
  data.problem_ = p;
  Tensors& t = data.tensors_;
  const auto dtype = static_cast<DType>(p.dtype_q), dtype_kv = static_cast<DType>(p.dtype_k);
  const int64_t blocks = p.page_size > 0 ? p.num_pages : p.batch,
                rows = p.page_size > 0 ? p.page_size : p.seqlen_kv;
  bool enough = data.add(t.q, dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim}) &&
                data.add(t.k, dtype_kv, {blocks, rows, p.heads_kv, p.head_dim}) &&
                data.add(t.v, dtype_kv, {blocks, rows, p.heads_kv, p.head_dim_v}) && data.add_pages(seed) &&
                data.add(t.o, dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim_v});
  if (enough && p.has(TILEWISE_HAS_KV_SCALES))
    enough = data.add(t.k_scales, DType::f32, {blocks, p.heads_kv}) &&
             data.add(t.v_scales, DType::f32, {blocks, p.heads_kv});
  const bool backward = p.direction == TILEWISE_BACKWARD;
  if (enough && (backward || p.has(TILEWISE_HAS_LSE)))
    enough = data.add(t.lse, DType::f32, {p.batch, p.heads_q, p.seqlen_q});
  if (enough && backward) {
    enough = data.add(t.dout, dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim_v}) &&
             data.add(t.dq, dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim}) &&
             data.add(t.dk, dtype, {p.batch, p.seqlen_kv, p.heads_kv, p.head_dim}) &&
             data.add(t.dv, dtype, {p.batch, p.seqlen_kv, p.heads_kv, p.head_dim_v});
  }
  if (!enough) return Status(Code::out_of_memory, "the tensors of the problem could not be allocated");
  uint64_t stream = 0;
  for (const tilewise_tensor* tensor : {&t.q, &t.k, &t.v, &t.dout, &t.o}) {
    const int64_t count = tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * tensor->shape[3];
    const uint64_t own = mix64(seed + 0x632be59bd9b4e019ull * ++stream);
    if (tensor->data) fill_normal(tensor->data, static_cast<DType>(tensor->dtype), count, own);
  }
  for (const tilewise_tensor* scales : {&t.k_scales, &t.v_scales})
    for (int64_t i = 0; scales->data && i < blocks * p.heads_kv; ++i)
      static_cast<float*>(scales->data)[i] = kQuantum * (1.0f + static_cast<float>(i % 7) / 8.0f);
  const tilewise_device_info& device = context.get()->device;
  if (device.kind == TILEWISE_CUDA) {
    data.mirror_ = std::make_unique<cuda::Mirror>(device.index);
    data.mirror_->add(t);
    if (Status s = data.mirror_->upload(); !s.ok()) return s;
    data.twins_ = data.mirror_->twins(t);
  }
  return data;
}

Status ProblemData::fetch(tilewise_tensor Tensors::*tensor) const {
  return mirror_ ? mirror_->download(tensors_.*tensor) : Status();
}

Status ProblemData::fill_forward(const Context& context) {
  Tensors t{};
  const Tensors& all = tensors();
  t.q = all.q, t.k = all.k, t.v = all.v, t.o = all.o, t.lse = all.lse;
  auto call = PlannedCall::make(context, forward_of(problem_), t);
  if (!call) return call.status();
  if (Status s = call->run(); !s.ok()) return s;
  return call->wait();
}

PlannedCall::PlannedCall(const Context& context, const Plan& plan, const Tensors& tensors,
                         Workspace workspace)
    : context_(&context), plan_(plan), tensors_(tensors), workspace_(std::move(workspace)) {}

Expected<PlannedCall> PlannedCall::make(const Context& context, const Problem& problem,
                                        const Tensors& tensors, const char* kernel, int threads) {
  Limits limits;
  limits.kernel = kernel;
  limits.threads = threads;
  auto made = tilewise::plan(problem, context, limits);
  if (!made) return made.status();
  if (Status status = prepare(context, *made); !status) return status;
  auto workspace = Workspace::make(*made);
  if (!workspace) return workspace.status();
  return PlannedCall(context, *made, tensors, std::move(*workspace));
}

Status PlannedCall::run(void* stream) const { return run_on(tensors_, stream); }

Status PlannedCall::run_on(const Tensors& tensors, void* stream) const {
  return plan_.problem.direction == TILEWISE_BACKWARD
             ? backward(*context_, plan_, tensors, workspace_, stream)
             : forward(*context_, plan_, tensors, workspace_, stream);
}

Status PlannedCall::wait() const {
  return plan_.device_kind == TILEWISE_CUDA ? cuda::synchronize(plan_.device_index) : Status();
}

}  // namespace tilewise::tune
