// Three-step attention on the platform's BLAS: S = Q K^T, softmax, O = P V, a whole score matrix a head. BLAS
// runs single-threaded and heads are spread over our threads, which is faster than a BLAS that spreads each
// product; the heads of a group whose one query each lies side by side share one, so that k and v are read
// once a group. Backward keeps P from the forward pass, as training frameworks do without a fused kernel:
// four products instead of our five, and S^2 numbers a head in memory between the calls. `again` is the
// backward from what ours is given: q, k, v, o, lse and dO, five products. BLAS has no product of 16-bit
// tensors: they are copied to fp32 before the timing, which is in its favour as long as the copies stay in a
// cache where ours do; beyond, it reads twice the bytes, as whoever has only BLAS would.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "cli/memory.h"
#include "cli/rivals/rival.h"
#include "cli/rivals/softmax.h"
#include "core/element.h"
#include "core/pages.h"
#include "tilewise/plan.h"

namespace tilewise::cli {
namespace {

enum Order { kRowMajor = 101 };
enum Transpose { kAsIs = 111, kTransposed = 112 };
using Sgemm = void(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                   const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);

struct Blas {
  Sgemm* sgemm = nullptr;
  std::string what;
};

int as_int(int64_t n) { return static_cast<int>(n); }

class ThreeStepCall : public RivalCall {
 public:
  ThreeStepCall(const Blas& blas, const SoftmaxSteps& steps, const Problem& problem, bool step, bool again,
                const Tensors& tensors, int threads, Executor& executor)
      : blas_(blas),
        steps_(steps),
        p_(problem),
        step_(step),
        again_(again),
        t_(tensors),
        threads_(threads),
        executor_(executor) {}

  bool allocate() {
    const int64_t matrix = p_.seqlen_q * p_.seqlen_kv,
                  of_o = p_.batch * p_.seqlen_q * p_.heads_q * p_.head_dim_v;
    const int64_t kept = again_ ? threads_ : p_.batch * p_.heads_q;
    for (tilewise_tensor* t : {&t_.q, &t_.k, &t_.v, &t_.o, &t_.dout})
      if (!widen(*t)) return false;
    if (!take(scores_, threads_ * together() * matrix) || !take(o_, of_o)) return false;
    if (p_.direction == TILEWISE_FORWARD) return true;
    const int64_t of_q = p_.batch * p_.seqlen_q * p_.heads_q * p_.head_dim;
    const int64_t of_k = p_.batch * p_.seqlen_kv * p_.heads_kv * p_.head_dim;
    const int64_t of_v = p_.batch * p_.seqlen_kv * p_.heads_kv * p_.head_dim_v;
    if (!take(weights_, kept * matrix) || !take(dq_, of_q) || !take(dk_, of_k) || !take(dv_, of_v))
      return false;
    if (!again_) forward();
    return true;
  }

  Status run() override {
    if (step_ || p_.direction == TILEWISE_FORWARD) forward();
    if (p_.direction == TILEWISE_BACKWARD) backward();
    return {};
  }
  const float* result() const override { return data(p_.direction == TILEWISE_FORWARD ? o_ : dq_); }

 private:
  static bool take(Buffer& buffer, int64_t floats) {
    buffer = Buffer(std::max<int64_t>(floats, 1) * 4);
    return buffer.data() != nullptr;
  }
  // An fp32 copy in the place of a row-major 16-bit tensor.
  bool widen(tilewise_tensor& t) {
    if (t.dtype == TILEWISE_NONE || t.dtype == TILEWISE_F32) return true;
    int64_t count = 1;
    for (int i = 0; i < t.rank; ++i) count *= t.shape[i];
    Pages copy = allocate_pages(static_cast<size_t>(count) * sizeof(float));
    if (!copy) return false;
    auto* to = reinterpret_cast<float*>(copy.get());
    for (int64_t i = 0; i < count; ++i) to[i] = load_element(t.data, static_cast<DType>(t.dtype), i);
    t.data = to;
    t.dtype = TILEWISE_F32;
    copies_.push_back(std::move(copy));
    return true;
  }
  // Heads of a group that share a product: their rows of q and o follow each other at one stride.
  int64_t together() const {
    const bool forward = p_.direction == TILEWISE_FORWARD;
    return forward && p_.seqlen_q == 1 ? p_.heads_q / p_.heads_kv : 1;
  }
  static float* data(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
  static const float* head(const tilewise_tensor& t, int64_t b, int64_t h) {
    return static_cast<const float*>(t.data) + b * t.stride[0] + h * t.stride[2];
  }
  // The same place in an output of our own, row-major [batch, rows, heads, dim].
  static float* head(const Buffer& buffer, const tilewise_tensor& like, int64_t b, int64_t h) {
    return data(buffer) + b * like.stride[0] + h * like.stride[2];
  }

  void forward() {
    const int64_t heads = together(), tasks = p_.heads_q / heads;
    executor_.run(p_.batch * tasks, threads_, [&](int64_t task, int worker) {
      const int64_t b = task / tasks, h = task % tasks * heads;
      const bool keep = weights_.data() != nullptr;
      const int64_t matrix = p_.seqlen_q * p_.seqlen_kv;
      forward_heads(b, h, heads,
                    keep ? data(weights_) + task * matrix : data(scores_) + worker * heads * matrix, keep);
    });
  }

  // Of one head all rows, or one row of each of `heads`.
  void forward_heads(int64_t b, int64_t h, int64_t heads, float* scores, bool normalise) {
    const int64_t kv_head = h / (p_.heads_q / p_.heads_kv);
    const int along = heads > 1 ? 2 : 1;  // dimension of q and o on which the rows lie
    const int rows = as_int(p_.seqlen_q * heads), keys = as_int(p_.seqlen_kv);
    const int row_q = as_int(t_.q.stride[along]), row_k = as_int(t_.k.stride[1]),
              row_v = as_int(t_.v.stride[1]), row_o = as_int(t_.o.stride[along]);
    blas_.sgemm(kRowMajor, kAsIs, kTransposed, rows, keys, as_int(p_.head_dim), scale(), head(t_.q, b, h),
                row_q, head(t_.k, b, kv_head), row_k, 0.0f, scores, keys);
    float* o = head(o_, t_.o, b, h);
    std::vector<float> factors(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      const auto [lo, hi] = keys_of(heads > 1 ? 0 : i);
      const float sum = steps_.exponentials(scores + i * keys, lo, hi, keys);
      factors[static_cast<size_t>(i)] = sum > 0 ? 1.0f / sum : 0.0f;
      if (normalise) steps_.scale(scores + i * keys, keys, factors[static_cast<size_t>(i)]);
    }
    blas_.sgemm(kRowMajor, kAsIs, kAsIs, rows, as_int(p_.head_dim_v), keys, 1.0f, scores, keys,
                head(t_.v, b, kv_head), row_v, 0.0f, o, row_o);
    if (normalise) return;
    for (int64_t i = 0; i < rows; ++i)
      steps_.scale(o + i * row_o, p_.head_dim_v, factors[static_cast<size_t>(i)]);
  }

  void backward() {
    executor_.run(p_.batch * p_.heads_kv, threads_, [&](int64_t task, int worker) {
      const int64_t b = task / p_.heads_kv, kv_head = task % p_.heads_kv, group = p_.heads_q / p_.heads_kv;
      const int64_t matrix = p_.seqlen_q * p_.seqlen_kv;
      for (int64_t g = 0; g < group; ++g) {
        const int64_t h = kv_head * group + g;
        float* weights = data(weights_) + (again_ ? worker : b * p_.heads_q + h) * matrix;
        if (again_) make_weights(b, h, kv_head, weights);
        const float* o = again_ ? head(t_.o, b, h) : head(o_, t_.o, b, h);
        backward_head(b, h, kv_head, weights, o, data(scores_) + worker * matrix, g == 0 ? 0.0f : 1.0f);
      }
    });
  }

  void make_weights(int64_t b, int64_t h, int64_t kv_head, float* weights) {
    const int rows = as_int(p_.seqlen_q), keys = as_int(p_.seqlen_kv);
    const float* lse = static_cast<const float*>(t_.lse.data) + (b * p_.heads_q + h) * p_.seqlen_q;
    blas_.sgemm(kRowMajor, kAsIs, kTransposed, rows, keys, as_int(p_.head_dim), scale(), head(t_.q, b, h),
                as_int(t_.q.stride[1]), head(t_.k, b, kv_head), as_int(t_.k.stride[1]), 0.0f, weights, keys);
    for (int64_t i = 0; i < rows; ++i) {
      const auto [lo, hi] = keys_of(i);
      steps_.weights(weights + i * keys, lse[i], lo, hi, keys);
    }
  }

  void backward_head(int64_t b, int64_t h, int64_t kv_head, const float* weights, const float* o, float* ds,
                     float keep) {
    const int rows = as_int(p_.seqlen_q), keys = as_int(p_.seqlen_kv), d = as_int(p_.head_dim),
              d_v = as_int(p_.head_dim_v);
    const int row_q = as_int(t_.q.stride[1]), row_k = as_int(t_.k.stride[1]), row_v = as_int(t_.v.stride[1]),
              row_o = as_int(t_.o.stride[1]);
    const float* dout = head(t_.dout, b, h);
    blas_.sgemm(kRowMajor, kTransposed, kAsIs, keys, d_v, rows, 1.0f, weights, keys, dout, row_o, keep,
                head(dv_, t_.v, b, kv_head), row_v);
    blas_.sgemm(kRowMajor, kAsIs, kTransposed, rows, keys, d_v, 1.0f, dout, row_o, head(t_.v, b, kv_head),
                row_v, 0.0f, ds, keys);
    for (int64_t i = 0; i < rows; ++i) {
      const float delta = steps_.dot(dout + i * row_o, o + i * row_o, d_v);
      steps_.score_gradient(ds + i * keys, weights + i * keys, delta, keys);
    }
    blas_.sgemm(kRowMajor, kAsIs, kAsIs, rows, d, keys, scale(), ds, keys, head(t_.k, b, kv_head), row_k,
                0.0f, head(dq_, t_.q, b, h), row_q);
    blas_.sgemm(kRowMajor, kTransposed, kAsIs, keys, d, rows, scale(), ds, keys, head(t_.q, b, h), row_q,
                keep, head(dk_, t_.k, b, kv_head), row_k);
  }

  float scale() const {
    return p_.softmax_scale == p_.softmax_scale ? p_.softmax_scale
                                                : 1.0f / std::sqrt(static_cast<float>(p_.head_dim));
  }
  std::pair<int64_t, int64_t> keys_of(int64_t i) const {
    const int64_t position = i + (p_.position == TILEWISE_TOP_LEFT ? 0 : p_.seqlen_kv - p_.seqlen_q);
    const int64_t right = p_.causal ? 0 : p_.window_right;
    const int64_t lo = p_.window_left >= 0 ? std::max<int64_t>(0, position - p_.window_left) : 0;
    const int64_t hi = right >= 0 ? std::min(p_.seqlen_kv, position + right + 1) : p_.seqlen_kv;
    return {std::min(lo, p_.seqlen_kv), std::max<int64_t>(hi, 0)};
  }

  const Blas& blas_;
  const SoftmaxSteps& steps_;
  const Problem p_;
  const bool step_, again_;
  Tensors t_;  // all fp32
  std::vector<Pages> copies_;
  const int threads_;
  Executor& executor_;
  Buffer scores_, weights_, o_, dq_, dk_, dv_;  // scores_: a matrix a thread; weights_: a head, or a thread
};

class ThreeStep : public Rival {
 public:
  ThreeStep(Blas blas, uint64_t isa, bool again)
      : blas_(std::move(blas)), steps_(softmax_steps(isa)), again_(again) {}
  const char* name() const override { return again_ ? "three-step-again" : "three-step"; }
  std::string what() const override {
    return blas_.what + (again_ ? "; backward makes P again" : "; P kept for backward") +
           "; 16-bit tensors as fp32 copies made outside the timing";
  }

  int64_t scratch_bytes(const Problem& p, int threads) const override {
    const bool backward = p.direction == TILEWISE_BACKWARD;
    const int64_t group = !backward && p.seqlen_q == 1 ? p.heads_q / p.heads_kv : 1;
    const int64_t kept = again_ ? threads : p.batch * p.heads_q,
                  matrices = threads * group + (backward ? kept : 0);
    const int64_t outputs =
        p.batch * (p.seqlen_q * p.heads_q * (p.head_dim_v + (backward ? p.head_dim : 0)) +
                   (backward ? p.seqlen_kv * p.heads_kv * (p.head_dim + p.head_dim_v) : 0));
    const int64_t of_q = p.seqlen_q * p.heads_q * (p.head_dim + p.head_dim_v * (backward ? 2 : 1));
    const int64_t of_k = p.seqlen_kv * p.heads_kv * (p.head_dim + p.head_dim_v);
    const int64_t copies = p.dtype_q == TILEWISE_F32 ? 0 : p.batch * (of_q + of_k);
    return 4 * (matrices * p.seqlen_q * p.seqlen_kv + outputs + copies);
  }

  Expected<std::unique_ptr<RivalCall>> bind(const Problem& problem, bool step, const Tensors& tensors,
                                            int threads, Executor& executor) override {
    if (again_ && (step || problem.direction == TILEWISE_FORWARD))
      return Status(Code::unsupported, "is three-step itself but in backward");
    auto call =
        std::make_unique<ThreeStepCall>(blas_, steps_, problem, step, again_, tensors, threads, executor);
    if (!call->allocate()) return Status(Code::out_of_memory, "its score matrices do not fit into memory");
    return std::unique_ptr<RivalCall>(std::move(call));
  }

 private:
  Blas blas_;
  SoftmaxSteps steps_;
  bool again_;
};

// An OpenBLAS older than the processor falls back to its oldest kernels, which would be no rival: it is
// opened again with the kernels of the widest instruction set that the processor has, unless the user chose
// some.
Expected<SharedLibrary> open_blas(uint64_t isa) {
  const std::vector<std::string> names = {"libopenblas.so.0", "libopenblas.so", "libmkl_rt.so.2",
                                          "libblis.so.4", "libcblas.so.3"};
  auto library = SharedLibrary::open(names);
  const bool wide = (isa & (TILEWISE_ISA_AVX2 | TILEWISE_ISA_AVX512)) != 0;
  char* (*core)() = nullptr;
  if (!library || !wide || std::getenv("OPENBLAS_CORETYPE") || !library->find(core, "openblas_get_corename"))
    return library;
  const std::string chosen = core();
  for (const char* old : {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem", "Atom", "Generic"}) {
    if (chosen != old) continue;
    library->close();
    setenv("OPENBLAS_CORETYPE", isa & TILEWISE_ISA_AVX512 ? "SkylakeX" : "Haswell", 1);
    return SharedLibrary::open(names);
  }
  return library;
}

}  // namespace

Expected<std::unique_ptr<Rival>> find_three_step(bool again) {
  auto device = DeviceInfo::query();
  if (!device) return device.status();
  auto library = open_blas(device->isa);
  if (!library)
    return Status(Code::unsupported, library.status().message() + " (Debian: libopenblas0-pthread)");
  Blas blas;
  if (!library->find(blas.sgemm, "cblas_sgemm"))
    return Status(Code::unsupported, library->name() + " has no cblas_sgemm");
  blas.what = "sgemm of " + library->name() + ", vector softmax";
  void (*set_threads)(int) = nullptr;
  for (const char* name : {"openblas_set_num_threads", "MKL_Set_Num_Threads", "bli_thread_set_num_threads"})
    if (!set_threads && library->find(set_threads, name)) set_threads(1);
  char* (*config)() = nullptr;
  if (library->find(config, "openblas_get_config")) {
    const std::string text = config();
    blas.what = "sgemm of " + text.substr(0, text.find(' ', text.find(' ') + 1));
    char* (*core)() = nullptr;
    if (library->find(core, "openblas_get_corename")) blas.what += std::string(" ") + core();
    blas.what += ", vector softmax";
  }
  return std::unique_ptr<Rival>(std::make_unique<ThreeStep>(std::move(blas), device->isa, again));
}

}  // namespace tilewise::cli
