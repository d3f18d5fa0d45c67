// The same keys as a dense cache, packed, in pages, appended and in parts that are merged, on a device: one
// answer, which is the host's. Caches are written by appending, those in 8 bits with a scale of each row.
#include <algorithm>

#include "core/element.h"
#include "core/text.h"
#include "reference/case_tensor.h"
#include "reference/case_values.h"
#include "tests/support/device_call.h"

namespace tilewise {
namespace {

using namespace testing_support;

constexpr int64_t kBatch = 2, kHeads = 8, kHeadsKv = 2, kDim = 128, kKeys = 320, kPageSize = 16;
constexpr int64_t kMaxPages = kKeys / kPageSize, kPages = kBatch * kMaxPages + 1;
constexpr double kError = 8e-3, kLseError = 1e-4;  // weights in 16 bits, of values up to 2

struct Memory {
  explicit Memory(int64_t bytes) : bytes(static_cast<size_t>(bytes), std::byte{0}) {}
  std::vector<std::byte> bytes;
};

struct Result {
  std::vector<float> o = std::vector<float>(kBatch * kHeads * kDim, 7.0f),
                     lse = std::vector<float>(kBatch * kHeads, 7.0f);
  friend bool operator==(const Result& a, const Result& b) { return a.o == b.o && a.lse == b.lse; }
};

void expect_near(const Result& a, const Result& b) {
  for (size_t i = 0; i < a.o.size(); ++i) ASSERT_NEAR(a.o[i], b.o[i], kError) << "o " << i;
  for (size_t i = 0; i < a.lse.size(); ++i) ASSERT_NEAR(a.lse[i], b.lse[i], kLseError) << "lse " << i;
}

// One call on copies of its host tensors, where it is to run; what it may write comes back.
class Run {
 public:
  explicit Run(const Context& context, bool on_device) : context_(context), on_device_(on_device) {}

  void attend(const Problem& options, const Tensors& t) {
    call({&t.o, &t.lse}, t, Append(),
         [&](const Tensors& there, const Append&) { return attention(context_, options, there); });
  }
  void append(const Append& a) {
    call({&a.k, &a.v, &a.k_scales, &a.v_scales}, Tensors{}, a,
         [&](const Tensors&, const Append& there) { return cache_append(context_, there); });
  }
  // By hand with a plan of its own, or in the one-call form.
  void append_and_attend(const Problem& options, const Append& a, const Tensors& t, bool by_hand) {
    call({&t.o, &t.lse, &t.k, &t.v}, t, a, [&](const Tensors& there, const Append& rows) -> Status {
      if (!by_hand) return append_attention(context_, rows, options, there);
      auto problem = problem_from(options, there);
      if (!problem) return problem.status();
      const auto made = on_device_ ? plan(*problem, *cuda_device()) : plan(*problem, context_);
      if (!made) return made.status();
      auto workspace = Workspace::make(*made);
      if (!workspace) return workspace.status();
      Status status = append_forward(context_, *made, rows, there, *workspace);
      if (status.ok() && on_device_) status = cuda::synchronize(0);  // before the workspace goes
      return status;
    });
  }
  void fold(const Tensors& into, const Tensors& part) {
    Tensors both = into;  // four tensors of one call
    both.dq = part.o, both.dlse = part.lse;
    call({&into.o, &into.lse}, both, Append(),
         [&](const Tensors& t, const Append&) { return merge(context_, t.o, t.lse, t.dq, t.dlse); });
  }

 private:
  template <typename Call>
  void call(std::initializer_list<const tilewise_tensor*> written, const Tensors& t, const Append& a,
            const Call& run) {
    if (!on_device_) {
      ASSERT_EQ(run(t, a).message(), "");
      return;
    }
    cuda::Mirror mirror(0);
    mirror.add(t);
    Append there = a;
    tilewise_tensor* const rows[] = {&there.k_new,      &there.v_new,    &there.starts,
                                     &there.lengths,    &there.k,        &there.v,
                                     &there.page_table, &there.k_scales, &there.v_scales};
    for (const tilewise_tensor* x : rows)
      if (x->dtype != TILEWISE_NONE && !is_inside(t, *x)) mirror.add(*x);
    ASSERT_EQ(mirror.upload().message(), "");
    for (tilewise_tensor* x : rows)
      if (x->dtype != TILEWISE_NONE) *x = mirror.twin(*x);
    ASSERT_EQ(run(mirror.twins(t), there).message(), "");
    ASSERT_EQ(cuda::synchronize(0).message(), "");
    for (const tilewise_tensor* x : written) {
      if (x->dtype != TILEWISE_NONE) {
        ASSERT_EQ(mirror.download(*x).message(), "");
      }
    }
  }
  // The cache of an append that attends is the one that is read: one copy.
  static bool is_inside(const Tensors& t, const tilewise_tensor& x) {
    for (const tilewise_tensor* y : {&t.k, &t.v, &t.page_table, &t.k_scales, &t.v_scales})
      if (y->dtype != TILEWISE_NONE && y->data == x.data) return true;
    return false;
  }

  const Context& context_;
  const bool on_device_;
};

struct Forms {
  DType dtype_q, dtype;
  std::vector<int32_t> table, lengths{kKeys, 213}, starts{0, 0}, cu_q{0, 1, 2}, cu_kv{0, kKeys, 533};
  Memory q, k_new, v_new, k, v, k_paged, v_paged;
  std::vector<float> k_scales, v_scales, k_paged_scales, v_paged_scales;

  Forms(DType of_q, DType of_kv)
      : dtype_q(of_q),
        dtype(of_kv),
        q(kBatch * kHeads * kDim * element_bytes(of_q)),
        k_new(kBatch * kKeys * kHeadsKv * kDim * element_bytes(of_q)),
        v_new(k_new),
        k(kBatch * kKeys * kHeadsKv * kDim * element_bytes(of_kv)),
        v(k),
        k_paged(kPages * kPageSize * kHeadsKv * kDim * element_bytes(of_kv)),
        v_paged(k_paged),
        k_scales(kBatch * kKeys * kHeadsKv, 1.0f),
        v_scales(k_scales),
        k_paged_scales(kPages * kPageSize * kHeadsKv, 1.0f),
        v_paged_scales(k_paged_scales) {
    Random random(5);
    for (Memory* m : {&q, &k_new, &v_new}) {
      const auto count = static_cast<int64_t>(m->bytes.size()) / element_bytes(dtype_q);
      for (int64_t i = 0; i < count; ++i)
        store_element(m->bytes.data(), dtype_q, i, static_cast<float>(4.0 * random.uniform() - 2.0));
    }
    for (int64_t i = 0; i < kBatch * kMaxPages; ++i)
      table.push_back(static_cast<int32_t>(i * 23 % (kBatch * kMaxPages) + 1));
  }
  bool quantized() const { return is_quantized(dtype); }
  Problem options() const {
    Problem p;
    p.scale_rows = quantized() ? 1 : 0;
    return p;
  }
  // Of packed tensors whose offsets a device has, the caller says the longest sequence.
  Problem packed_options() const {
    Problem p = options();
    p.seqlen_q = 1, p.seqlen_kv = kKeys;
    return p;
  }
  Tensors queries(Result& r) {
    Tensors t{};
    t.q = Tensor(q.bytes.data(), dtype_q, {kBatch, 1, kHeads, kDim});
    t.o = Tensor(r.o.data(), {kBatch, 1, kHeads, kDim});
    t.lse = Tensor(r.lse.data(), {kBatch, kHeads, 1});
    t.kv_lengths = Tensor(lengths.data(), {kBatch});
    return t;
  }
  Tensors dense(Result& r) {
    Tensors t = queries(r);
    t.k = Tensor(k.bytes.data(), dtype, {kBatch, kKeys, kHeadsKv, kDim});
    t.v = Tensor(v.bytes.data(), dtype, {kBatch, kKeys, kHeadsKv, kDim});
    if (!quantized()) return t;
    t.k_scales = Tensor(k_scales.data(), {kBatch, kKeys, kHeadsKv});
    t.v_scales = Tensor(v_scales.data(), {kBatch, kKeys, kHeadsKv});
    return t;
  }
  Tensors packed(Result& r) {
    Tensors t = dense(r);
    t.q = Tensor(q.bytes.data(), dtype_q, {kBatch, kHeads, kDim});
    t.o = Tensor(r.o.data(), {kBatch, kHeads, kDim});
    t.lse = Tensor(r.lse.data(), {kHeads, kBatch}).with_strides({1, kHeads});  // as the dense one lies
    t.k = Tensor(k.bytes.data(), dtype, {kBatch * kKeys, kHeadsKv, kDim});
    t.v = Tensor(v.bytes.data(), dtype, {kBatch * kKeys, kHeadsKv, kDim});
    t.cu_seqlens_q = Tensor(cu_q.data(), {kBatch + 1});
    t.cu_seqlens_kv = Tensor(cu_kv.data(), {kBatch + 1});
    t.kv_lengths = Tensor();
    return t;
  }
  Tensors paged(Result& r) {
    Tensors t = queries(r);
    t.k = Tensor(k_paged.bytes.data(), dtype, {kPages, kPageSize, kHeadsKv, kDim});
    t.v = Tensor(v_paged.bytes.data(), dtype, {kPages, kPageSize, kHeadsKv, kDim});
    t.page_table = Tensor(table.data(), {kBatch, kMaxPages});
    if (!quantized()) return t;
    t.k_scales = Tensor(k_paged_scales.data(), {kPages, kPageSize, kHeadsKv});
    t.v_scales = Tensor(v_paged_scales.data(), {kPages, kPageSize, kHeadsKv});
    return t;
  }
  // Rows [first, first + count) of every sequence into the cache that `to` reads.
  Append rows(const Tensors& to, std::vector<int32_t>& first, std::vector<int32_t>& counts) {
    Append a;
    a.k_new = Tensor(k_new.bytes.data(), dtype_q, {kBatch, kKeys, kHeadsKv, kDim});
    a.v_new = Tensor(v_new.bytes.data(), dtype_q, {kBatch, kKeys, kHeadsKv, kDim});
    a.starts = Tensor(first.data(), {kBatch});
    a.lengths = Tensor(counts.data(), {kBatch});
    a.k = to.k, a.v = to.v, a.page_table = to.page_table;
    a.k_scales = to.k_scales, a.v_scales = to.v_scales;
    a.scale_rows = a.write_scales = quantized() ? 1 : 0;
    return a;
  }
  // The last row of each sequence alone.
  Append last(const Tensors& to, std::vector<int32_t>& first) {
    Append a = rows(to, first, lengths);
    a.lengths = Tensor();
    a.k_new.shape[1] = a.v_new.shape[1] = 1;
    // Row lengths[b] - 1 of sequence b: the two lie one stride apart.
    const int64_t row = kHeadsKv * kDim, apart = (kKeys + lengths[1] - lengths[0]) * row;
    for (tilewise_tensor* t : {&a.k_new, &a.v_new}) {
      t->data = static_cast<std::byte*>(t->data) + (lengths[0] - 1) * row * element_bytes(dtype_q);
      t->stride[0] = apart;
    }
    return a;
  }
};

class CudaCacheForms : public CudaTest {};

void check_forms(const Context& context, DType of_q, DType of_kv, bool on_device) {
  SCOPED_TRACE(cat("q ", name_of(of_q), ", cache ", name_of(of_kv)));
  Forms forms(of_q, of_kv);
  Run host(context, false), run(context, on_device);
  Result right, dense, packed, paged, appended, joint;
  run.append(forms.rows(forms.dense(right), forms.starts, forms.lengths));
  run.append(forms.rows(forms.paged(right), forms.starts, forms.lengths));
  host.attend(forms.options(), forms.dense(right));
  run.attend(forms.options(), forms.dense(dense));
  run.attend(forms.packed_options(), forms.packed(packed));
  run.attend(forms.options(), forms.paged(paged));
  for (const Result* r : {&dense, &packed, &paged}) expect_near(*r, right);

  // Pages without their sequences' last keys, which the call that attends appends.
  Forms again(of_q, of_kv);
  std::vector<int32_t> all_but_one{forms.lengths[0] - 1, forms.lengths[1] - 1};
  run.append(again.rows(again.paged(appended), again.starts, all_but_one));
  const Tensors t = again.paged(appended);
  run.append_and_attend(again.options(), again.last(t, all_but_one), t, true);
  EXPECT_EQ(appended, paged);
  const Tensors u = again.paged(joint);
  run.append_and_attend(again.options(), again.last(u, all_but_one), u, false);
  EXPECT_EQ(joint, paged);

  for (const int splits : {1, 2, 7, 64}) {
    SCOPED_TRACE(cat("in ", splits));
    Result all;
    for (int part = 0; part < splits; ++part) {
      Result r;
      std::vector<int32_t> first, end;
      for (const int32_t length : forms.lengths) {
        first.push_back(length * part / splits);
        end.push_back(length * (part + 1) / splits);
      }
      Tensors of = forms.dense(part == 0 ? all : r);
      of.kv_starts = Tensor(first.data(), {kBatch});
      of.kv_lengths = Tensor(end.data(), {kBatch});
      run.attend(forms.options(), of);
      if (part > 0) run.fold(forms.queries(all), of);
    }
    expect_near(all, right);
  }
}

TEST_F(CudaCacheForms, DensePackedPagedAppendedAndSplitAreTheHostsAnswer) {
  for (const auto& [of_q, of_kv] : {std::pair(DType::f32, DType::f32),
                                    {DType::bf16, DType::bf16},
                                    {DType::f16, DType::f16},
                                    {DType::bf16, DType::f8e4m3},
                                    {DType::f16, DType::i8},
                                    {DType::f32, DType::i8}})
    check_forms(context(), of_q, of_kv, true);
}

}  // namespace
}  // namespace tilewise
