// ggml's flash_attn_ext through its shared libraries, called by their C names with opaque pointers only, so
// that no header of it is needed. Its threads are its own, parked outside the samples.
#include <cmath>
#include <cstring>

#include "cli/rivals/rival.h"
#include "core/half.h"

namespace tilewise::cli {
namespace {

struct GgmlContext;
struct GgmlTensor;
struct GgmlGraph;
struct GgmlBackend;
struct GgmlThreadpool;

struct GgmlInit {  // ggml_init_params
  size_t memory_bytes;
  void* memory;
  bool no_data;
};
// ggml_threadpool_params is returned in memory and passed on by address; its size is about 530 bytes.
struct GgmlThreadpoolParams {
  std::byte opaque[4096];
};
enum GgmlType { kF32 = 0, kF16 = 1, kBf16 = 30 };
constexpr int kPrecisionF32 = 10;

struct Ggml {
  GgmlContext* (*init)(GgmlInit) = nullptr;
  void (*free)(GgmlContext*) = nullptr;
  size_t (*tensor_overhead)() = nullptr;
  size_t (*graph_overhead)() = nullptr;
  GgmlTensor* (*new_tensor)(GgmlContext*, int type, int64_t, int64_t, int64_t, int64_t) = nullptr;
  GgmlTensor* (*permute)(GgmlContext*, GgmlTensor*, int, int, int, int) = nullptr;
  void* (*data)(const GgmlTensor*) = nullptr;
  GgmlTensor* (*flash)(GgmlContext*, GgmlTensor* q, GgmlTensor* k, GgmlTensor* v, GgmlTensor* mask,
                       float scale, float max_bias, float softcap) = nullptr;
  void (*set_precision)(GgmlTensor*, int) = nullptr;
  GgmlGraph* (*new_graph)(GgmlContext*) = nullptr;
  void (*expand)(GgmlGraph*, GgmlTensor*) = nullptr;
  int (*compute)(GgmlBackend*, GgmlGraph*) = nullptr;
  void (*backend_free)(GgmlBackend*) = nullptr;
  GgmlThreadpoolParams (*threadpool_default)(int) = nullptr;
  const char* (*version)() = nullptr;
  GgmlBackend* (*cpu_init)() = nullptr;
  void (*cpu_set_threads)(GgmlBackend*, int) = nullptr;
  void (*cpu_set_threadpool)(GgmlBackend*, GgmlThreadpool*) = nullptr;
  GgmlThreadpool* (*threadpool_new)(GgmlThreadpoolParams*) = nullptr;
  void (*threadpool_free)(GgmlThreadpool*) = nullptr;
  void (*threadpool_pause)(GgmlThreadpool*) = nullptr;
  void (*threadpool_resume)(GgmlThreadpool*) = nullptr;
  int (*has_avx512)() = nullptr;

  // Empty, or the name that is missing.
  std::string load(const SharedLibrary& base, const SharedLibrary& cpu) {
    std::string missing;
    const auto need = [&](const SharedLibrary& library, auto& function, const char* name) {
      if (!library.find(function, name) && missing.empty()) missing = name;
    };
    need(base, init, "ggml_init");
    need(base, free, "ggml_free");
    need(base, tensor_overhead, "ggml_tensor_overhead");
    need(base, graph_overhead, "ggml_graph_overhead");
    need(base, new_tensor, "ggml_new_tensor_4d");
    need(base, permute, "ggml_permute");
    need(base, data, "ggml_get_data");
    need(base, flash, "ggml_flash_attn_ext");
    need(base, set_precision, "ggml_flash_attn_ext_set_prec");
    need(base, new_graph, "ggml_new_graph");
    need(base, expand, "ggml_build_forward_expand");
    need(base, compute, "ggml_backend_graph_compute");
    need(base, backend_free, "ggml_backend_free");
    need(base, threadpool_default, "ggml_threadpool_params_default");
    need(base, version, "ggml_version");
    need(cpu, cpu_init, "ggml_backend_cpu_init");
    need(cpu, cpu_set_threads, "ggml_backend_cpu_set_n_threads");
    need(cpu, cpu_set_threadpool, "ggml_backend_cpu_set_threadpool");
    need(cpu, threadpool_new, "ggml_threadpool_new");
    need(cpu, threadpool_free, "ggml_threadpool_free");
    need(cpu, threadpool_pause, "ggml_threadpool_pause");
    need(cpu, threadpool_resume, "ggml_threadpool_resume");
    need(cpu, has_avx512, "ggml_cpu_has_avx512");
    return missing;
  }
};

bool visible(const Problem& p, int64_t i, int64_t j) {
  const int64_t position = i + (p.position == TILEWISE_TOP_LEFT ? 0 : p.seqlen_kv - p.seqlen_q);
  const int64_t right = p.causal ? 0 : p.window_right;
  return (p.window_left < 0 || j >= position - p.window_left) && (right < 0 || j <= position + right);
}

int ggml_type(int32_t dtype) { return dtype == TILEWISE_F16 ? kF16 : dtype == TILEWISE_BF16 ? kBf16 : kF32; }

float float_at(const void* data, int32_t dtype, int64_t i) {
  if (dtype == TILEWISE_F32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return dtype == TILEWISE_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

class GgmlCall : public RivalCall {
 public:
  explicit GgmlCall(const Ggml& ggml) : ggml_(ggml) {}
  ~GgmlCall() override {
    if (backend_) ggml_.backend_free(backend_);
    if (pool_) ggml_.threadpool_free(pool_);
    if (context_) ggml_.free(context_);
  }

  Status build(const Problem& p, const Tensors& t, int threads, int64_t bytes) {
    const size_t overhead = 32 * ggml_.tensor_overhead() + ggml_.graph_overhead() + (size_t{1} << 16);
    context_ = ggml_.init({static_cast<size_t>(bytes) + overhead, nullptr, false});
    if (!context_) return Status(Code::out_of_memory, "ggml_init found no memory");
    // Our [batch, seqlen, heads, dim] is its {dim, heads, seqlen, batch}; it wants {dim, seqlen, heads,
    // batch}.
    const auto make = [&](const tilewise_tensor& from, int type) {
      auto* tensor =
          ggml_.new_tensor(context_, type, from.shape[3], from.shape[2], from.shape[1], from.shape[0]);
      const int64_t count = from.shape[0] * from.shape[1] * from.shape[2] * from.shape[3];
      if (type == ggml_type(from.dtype)) {
        std::memcpy(ggml_.data(tensor), from.data, static_cast<size_t>(count * (type == kF32 ? 4 : 2)));
      } else {
        auto* to = static_cast<float*>(ggml_.data(tensor));
        for (int64_t i = 0; i < count; ++i) to[i] = float_at(from.data, from.dtype, i);
      }
      return ggml_.permute(context_, tensor, 0, 2, 1, 3);
    };
    auto* q = make(t.q, kF32);  // it takes queries in f32 only
    auto* k = make(t.k, ggml_type(t.k.dtype));
    auto* v = make(t.v, ggml_type(t.v.dtype));
    GgmlTensor* mask = nullptr;
    if (p.causal || p.window_left >= 0 || p.window_right >= 0) {
      mask = ggml_.new_tensor(context_, kF16, p.seqlen_kv, p.seqlen_q, 1, 1);
      auto* to = static_cast<uint16_t*>(ggml_.data(mask));
      for (int64_t i = 0; i < p.seqlen_q; ++i)
        for (int64_t j = 0; j < p.seqlen_kv; ++j) *to++ = visible(p, i, j) ? 0 : 0xfc00;  // -inf
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(p.head_dim));
    o_ = ggml_.flash(context_, q, k, v, mask, scale, 0.0f, 0.0f);
    ggml_.set_precision(o_, kPrecisionF32);
    graph_ = ggml_.new_graph(context_);
    ggml_.expand(graph_, o_);
    auto params = ggml_.threadpool_default(threads);
    pool_ = ggml_.threadpool_new(&params);
    backend_ = ggml_.cpu_init();
    if (!pool_ || !backend_) return Status(Code::device, "ggml's CPU backend did not start");
    ggml_.cpu_set_threads(backend_, threads);
    ggml_.cpu_set_threadpool(backend_, pool_);
    park();
    return {};
  }

  Status run() override {
    if (ggml_.compute(backend_, graph_) != 0)
      return Status(Code::device, "ggml_backend_graph_compute failed");
    return {};
  }
  void wake() override { ggml_.threadpool_resume(pool_); }
  void park() override { ggml_.threadpool_pause(pool_); }
  const float* result() const override { return static_cast<const float*>(ggml_.data(o_)); }

 private:
  const Ggml& ggml_;
  GgmlContext* context_ = nullptr;
  GgmlBackend* backend_ = nullptr;
  GgmlThreadpool* pool_ = nullptr;
  GgmlGraph* graph_ = nullptr;
  GgmlTensor* o_ = nullptr;
};

class GgmlRival : public Rival {
 public:
  explicit GgmlRival(const Ggml& ggml) : ggml_(ggml) {}
  const char* name() const override { return "ggml"; }
  std::string what() const override {
    return std::string("flash_attn_ext of ggml ") + ggml_.version() +
           (ggml_.has_avx512() ? "" : ", no AVX-512");
  }
  int64_t scratch_bytes(const Problem& p, int) const override {
    const int64_t wide = p.dtype_k == TILEWISE_F32 ? 4 : 2;
    const bool masked = p.causal || p.window_left >= 0 || p.window_right >= 0;
    return p.batch * p.seqlen_q * p.heads_q * (p.head_dim + p.head_dim_v) * 4 +
           p.batch * p.seqlen_kv * p.heads_kv * (p.head_dim + p.head_dim_v) * wide +
           (masked ? 2 * p.seqlen_q * p.seqlen_kv : 0) + 4096;
  }
  Expected<std::unique_ptr<RivalCall>> bind(const Problem& problem, bool, const Tensors& tensors, int threads,
                                            Executor&) override {
    if (problem.direction != TILEWISE_FORWARD)
      return Status(Code::unsupported, "ggml has no backward of flash_attn_ext");
    auto call = std::make_unique<GgmlCall>(ggml_);
    if (Status status = call->build(problem, tensors, threads, scratch_bytes(problem, threads)); !status)
      return status;
    return std::unique_ptr<RivalCall>(std::move(call));
  }

 private:
  Ggml ggml_;
};

}  // namespace

Expected<std::unique_ptr<Rival>> find_ggml(const std::string& folder) {
  const auto names = [&](const char* name) {
    return std::vector<std::string>{folder + "/" + name + ".so", std::string(name) + ".so.0",
                                    std::string(name) + ".so"};
  };
  auto base = SharedLibrary::open(names("libggml-base"), true);
  auto cpu = base ? SharedLibrary::open(names("libggml-cpu")) : base;
  if (!cpu)
    return Status(Code::unsupported, "ggml is not in build/rivals (" + cpu.status().message() +
                                         "); `scripts/rivals.sh` gets it");
  Ggml ggml;
  if (const std::string missing = ggml.load(*base, *cpu); !missing.empty())
    return Status(Code::unsupported, cpu->name() + " has no " + missing);
  return std::unique_ptr<Rival>(std::make_unique<GgmlRival>(ggml));
}

}  // namespace tilewise::cli
