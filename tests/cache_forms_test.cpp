// The same keys as a dense cache, packed, in pages, appended, and in parts that are merged: one answer, in
// every dtype of a cache for q in f32. Calls that grow do not grow the process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "api/ledger.h"
#include "core/append.h"
#include "core/element.h"
#include "core/text.h"
#include "reference/case_tensor.h"
#include "reference/case_values.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

constexpr int64_t kBatch = 2, kHeads = 8, kHeadsKv = 2, kDim = 64, kKeys = 320, kPageSize = 16;
constexpr int64_t kPages = kBatch * kKeys / kPageSize + 1, kMaxPages = kKeys / kPageSize;
constexpr int64_t kRow = kHeadsKv * kDim;

// Between -2 and 2.
std::vector<float> noise(int64_t n, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(n));
  Random random(seed);
  for (float& v : x) v = static_cast<float>(4.0 * random.uniform() - 2.0);
  return x;
}

// k or v as a cache in one dtype, with a scale a page, and the same in pages.
struct Cache {
  DType dtype;
  std::vector<std::byte> dense, paged;
  std::vector<float> scales, paged_scales;  // [batch, groups, heads], [pages, heads]

  Cache(DType type, const std::vector<float>& from, const std::vector<int32_t>& table, uint64_t seed)
      : dtype(type),
        dense(static_cast<size_t>(kBatch * kKeys * kRow * element_bytes(type))),
        paged(static_cast<size_t>(kPages * kPageSize * kRow * element_bytes(type)), std::byte{0x7f}),
        scales(kBatch * kMaxPages * kHeadsKv),
        paged_scales(kPages * kHeadsKv, NAN) {
    for (size_t i = 0; i < scales.size(); ++i)
      scales[i] =
          (0.5f + static_cast<float>((i * 7 + seed) % 11) / 11.0f) * (dtype == DType::i8 ? 0.03f : 1.0f);
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t j = 0; j < kKeys; ++j) {
        const int64_t page = table[static_cast<size_t>(b * kMaxPages + j / kPageSize)];
        for (int64_t h = 0; h < kHeadsKv; ++h) {
          const float scale = scales[static_cast<size_t>((b * kMaxPages + j / kPageSize) * kHeadsKv + h)];
          paged_scales[static_cast<size_t>(page * kHeadsKv + h)] = scale;
          for (int64_t d = 0; d < kDim; ++d) {
            const int64_t at = (b * kKeys + j) * kRow + h * kDim + d;
            const float value =
                from[static_cast<size_t>(at)] * (is_quantized(dtype) ? inverse_of(scale) : 1.0f);
            store_element(dense.data(), dtype, at, value);
            store_element(paged.data(), dtype, (page * kPageSize + j % kPageSize) * kRow + h * kDim + d,
                          value);
          }
        }
      }
    }
  }
};

struct Result {
  std::vector<float> o = std::vector<float>(kBatch * kHeads * kDim, 7.0f),
                     lse = std::vector<float>(kBatch * kHeads, 7.0f);
  friend bool operator==(const Result& a, const Result& b) { return a.o == b.o && a.lse == b.lse; }
};

struct Forms {
  DType dtype;
  std::vector<int32_t> table, lengths{kKeys, 213}, cu{0, kKeys, 533};
  std::vector<float> q = noise(kBatch * kHeads * kDim, 1), k_new = noise(kBatch * kKeys * kRow, 2),
                     v_new = noise(kBatch * kKeys * kRow, 3);
  Cache k, v;

  static std::vector<int32_t> shuffled() {
    std::vector<int32_t> table(kBatch * kMaxPages);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>((i * 23) % table.size() + 1);
    return table;
  }
  explicit Forms(DType type)
      : dtype(type), table(shuffled()), k(type, k_new, table, 0), v(type, v_new, table, 5) {}

  bool quantized() const { return is_quantized(dtype); }
  Tensors queries(Result& r) {
    Tensors t{};
    t.q = Tensor(q.data(), {kBatch, 1, kHeads, kDim});
    t.o = Tensor(r.o.data(), {kBatch, 1, kHeads, kDim});
    t.lse = Tensor(r.lse.data(), {kBatch, kHeads, 1});
    t.kv_lengths = Tensor(lengths.data(), {kBatch});
    return t;
  }
  Problem options(int64_t scale_rows) const {
    Problem p;
    if (quantized()) p.scale_rows = scale_rows;
    return p;
  }
  Tensors dense(Result& r) {
    Tensors t = queries(r);
    t.k = Tensor(k.dense.data(), dtype, {kBatch, kKeys, kHeadsKv, kDim});
    t.v = Tensor(v.dense.data(), dtype, {kBatch, kKeys, kHeadsKv, kDim});
    if (quantized()) {
      t.k_scales = Tensor(k.scales.data(), {kBatch, kMaxPages, kHeadsKv});
      t.v_scales = Tensor(v.scales.data(), {kBatch, kMaxPages, kHeadsKv});
    }
    return t;
  }
  Tensors paged(Result& r) {
    Tensors t = queries(r);
    t.k = Tensor(k.paged.data(), dtype, {kPages, kPageSize, kHeadsKv, kDim});
    t.v = Tensor(v.paged.data(), dtype, {kPages, kPageSize, kHeadsKv, kDim});
    t.page_table = Tensor(table.data(), {kBatch, kMaxPages});
    if (quantized()) {
      t.k_scales = Tensor(k.paged_scales.data(), {kPages, kHeadsKv});
      t.v_scales = Tensor(v.paged_scales.data(), {kPages, kHeadsKv});
    }
    return t;
  }
  // The second sequence's rows follow the first one's at once: what lies behind its length belongs to nobody.
  Tensors packed(Result& r) {
    Tensors t = dense(r);
    t.k = Tensor(k.dense.data(), dtype, {kBatch * kKeys, kHeadsKv, kDim});
    t.v = Tensor(v.dense.data(), dtype, {kBatch * kKeys, kHeadsKv, kDim});
    t.cu_seqlens_kv = Tensor(cu.data(), {kBatch + 1});
    t.kv_lengths = Tensor();
    return t;
  }
};

// q is f32: rows read k and v in its dtype, or quantised.
constexpr DType kCacheTypes[] = {DType::f32, DType::f8e4m3, DType::i8};

TEST(CacheForms, DensePackedPagedAndAppendedAreOneAnswer) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  for (const DType dtype : kCacheTypes) {
    SCOPED_TRACE(name_of(dtype));
    Forms forms(dtype);
    Result dense, packed, paged, appended, joint;
    ASSERT_EQ(attention(*context, forms.options(kPageSize), forms.dense(dense)).message(), "");
    ASSERT_EQ(attention(*context, forms.options(kPageSize), forms.packed(packed)).message(), "");
    ASSERT_EQ(attention(*context, forms.options(0), forms.paged(paged)).message(), "");
    EXPECT_EQ(packed, dense);
    EXPECT_EQ(paged, dense);

    // Pages of garbage, into which the same keys are appended, the last of each by the call that attends.
    const auto k_right = forms.k.paged, v_right = forms.v.paged;
    std::fill(forms.k.paged.begin(), forms.k.paged.end(), std::byte{0x7f});
    std::fill(forms.v.paged.begin(), forms.v.paged.end(), std::byte{0x7f});
    const Tensors t = forms.paged(appended);
    std::vector<int32_t> starts{0, 0}, counts{forms.lengths[0] - 1, forms.lengths[1] - 1};
    Append a;
    a.k_new = Tensor(forms.k_new.data(), {kBatch, kKeys, kHeadsKv, kDim});
    a.v_new = Tensor(forms.v_new.data(), {kBatch, kKeys, kHeadsKv, kDim});
    a.starts = Tensor(starts.data(), {kBatch});
    a.lengths = Tensor(counts.data(), {kBatch});
    a.k = t.k, a.v = t.v, a.page_table = t.page_table, a.k_scales = t.k_scales, a.v_scales = t.v_scales;
    ASSERT_EQ(cache_append(*context, a).message(), "");
    Append last = a;
    std::vector<float> k_last(kBatch * kRow), v_last(kBatch * kRow);
    for (int64_t b = 0; b < kBatch; ++b) {
      const auto from = (b * kKeys + counts[static_cast<size_t>(b)]) * kRow;
      std::copy_n(forms.k_new.begin() + from, kRow, k_last.begin() + b * kRow);
      std::copy_n(forms.v_new.begin() + from, kRow, v_last.begin() + b * kRow);
    }
    last.k_new = Tensor(k_last.data(), {kBatch, 1, kHeadsKv, kDim});
    last.v_new = Tensor(v_last.data(), {kBatch, 1, kHeadsKv, kDim});
    last.starts = Tensor(counts.data(), {kBatch});
    last.lengths = Tensor();
    const auto problem = problem_from(forms.options(0), t);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const auto plan = tilewise::plan(*problem, *context);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    Workspace workspace(*plan);
    ASSERT_EQ(append_forward(*context, *plan, last, t, workspace).message(), "");
    EXPECT_EQ(appended, dense);
    ASSERT_EQ(append_attention(*context, last, forms.options(0), forms.paged(joint)).message(), "");
    EXPECT_EQ(joint, dense);
  }
}

// The parts that an engine would cut, each attended alone and merged.
TEST(CacheForms, SplitsOfAnyCountMergeToTheAnswer) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  for (const DType dtype : kCacheTypes) {
    Forms forms(dtype);
    Result whole;
    ASSERT_EQ(attention(*context, forms.options(kPageSize), forms.dense(whole)).message(), "");
    for (const int splits : {1, 2, 7, 64}) {
      SCOPED_TRACE(cat(name_of(dtype), " in ", splits));
      Result all;
      for (int part = 0; part < splits; ++part) {
        Result r;
        Tensors t = forms.dense(r);
        std::vector<int32_t> first(kBatch), last(kBatch);
        for (size_t b = 0; b < kBatch; ++b) {
          first[b] = forms.lengths[b] * part / splits;
          last[b] = forms.lengths[b] * (part + 1) / splits;
        }
        t.kv_starts = Tensor(first.data(), {kBatch});
        t.kv_lengths = Tensor(last.data(), {kBatch});
        ASSERT_EQ(attention(*context, forms.options(kPageSize), t).message(), "");
        if (part == 0) {
          all = r;
          continue;
        }
        const Tensors to = forms.dense(all);
        ASSERT_EQ(merge(*context, to.o, to.lse, t.o, t.lse).message(), "");
      }
      for (size_t i = 0; i < whole.o.size(); ++i) ASSERT_NEAR(all.o[i], whole.o[i], 2e-6) << i;
      for (size_t i = 0; i < whole.lse.size(); ++i) ASSERT_NEAR(all.lse[i], whole.lse[i], 2e-6) << i;
    }
  }
}

TEST(CacheForms, WhatIsRefusedIsNotAppended) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  Forms forms(DType::i8);
  Result r;
  const Tensors t = forms.paged(r);
  const auto plan = tilewise::plan(*problem_from(forms.options(0), t), *context);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  Workspace workspace(*plan);
  const auto before = forms.k.paged;
  std::vector<int32_t> starts{5, 6};
  Append a;
  a.k_new = Tensor(forms.k_new.data(), {kBatch, 1, kHeadsKv, kDim});
  a.v_new = Tensor(forms.v_new.data(), {kBatch, 1, kHeadsKv, kDim});
  a.starts = Tensor(starts.data(), {kBatch});
  a.k = t.k, a.v = t.v, a.page_table = t.page_table, a.k_scales = t.k_scales, a.v_scales = t.v_scales;
  const auto refused = [&](const Append& rows, const Tensors& tensors, const char* says) {
    for (const Status& status : {append_forward(*context, *plan, rows, tensors, workspace),
                                 append_attention(*context, rows, forms.options(0), tensors)}) {
      EXPECT_EQ(status.code(), Code::invalid);
      EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
      EXPECT_EQ(forms.k.paged, before) << says;
    }
  };
  Tensors no_output = t;
  no_output.o.flags |= TILEWISE_READ_ONLY;
  refused(a, no_output, "o is read-only");
  Append other = a;
  other.k = Tensor(forms.k.dense.data(), DType::i8, {kPages - 1, kPageSize, kHeadsKv, kDim});
  refused(other, t, "append writes another k or v");
  Append no_scales = a;
  no_scales.k_scales = Tensor();
  refused(no_scales, t, "k_scales is missing");
  Append wide = a;
  wide.write_scales = 1;
  refused(wide, t, "write_scales is 1 with scale_rows 0; accepted: scale_rows 1");
  std::vector<int32_t> same(kBatch * kMaxPages, 1), equal{5, 5};
  Append twice = a;
  twice.page_table = Tensor(same.data(), {kBatch, kMaxPages});
  twice.starts = Tensor(equal.data(), {kBatch});
  refused(twice, t, "sequences 0 and 1 both write row 5 of page 1");
  Tensors unscaled = t;
  unscaled.k_scales = unscaled.v_scales = Tensor();
  const Status status = append_forward(*context, *plan, a, unscaled, workspace);
  EXPECT_NE(status.message().find("k_scales is missing"), std::string::npos) << status.message();
  EXPECT_EQ(append_attention(*context, a, Problem().with_window(-5, 0), t).code(), Code::invalid);
  EXPECT_EQ(append_attention(*context, a, forms.options(0), unscaled).code(), Code::invalid);
  EXPECT_EQ(forms.k.paged, before);
}

// A row's own scale is its largest magnitude over the dtype's: what comes back is within half a step of it.
TEST(CacheForms, AppendWritesTheScalesOfItsRows) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  for (const DType dtype : {DType::i8, DType::f8e4m3}) {
    Forms forms(dtype);
    std::vector<float> k_scales(kBatch * kKeys * kHeadsKv, -1.0f), v_scales = k_scales;
    std::fill_n(forms.k_new.begin(), kDim, 0.0f);  // a row of zeros has scale 0
    std::vector<int32_t> starts{0, 3};
    constexpr int64_t kNew = 4;
    Append a;
    a.k_new = Tensor(forms.k_new.data(), {kBatch, kNew, kHeadsKv, kDim});
    a.v_new = Tensor(forms.v_new.data(), {kBatch, kNew, kHeadsKv, kDim});
    a.starts = Tensor(starts.data(), {kBatch});
    a.k = Tensor(forms.k.dense.data(), dtype, {kBatch, kKeys, kHeadsKv, kDim});
    a.v = Tensor(forms.v.dense.data(), dtype, {kBatch, kKeys, kHeadsKv, kDim});
    a.k_scales = Tensor(k_scales.data(), {kBatch, kKeys, kHeadsKv});
    a.v_scales = Tensor(v_scales.data(), {kBatch, kKeys, kHeadsKv});
    a.scale_rows = 1;
    a.write_scales = 1;
    ASSERT_EQ(cache_append(*context, a).message(), "");
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t j = 0; j < kKeys; ++j) {
        for (int64_t h = 0; h < kHeadsKv; ++h) {
          const int64_t i = j - starts[static_cast<size_t>(b)];
          const float scale = k_scales[static_cast<size_t>((b * kKeys + j) * kHeadsKv + h)];
          if (i < 0 || i >= kNew) {
            ASSERT_EQ(scale, -1.0f);
            continue;
          }
          float largest = 0.0f;
          const int64_t from = ((b * kNew + i) * kHeadsKv + h) * kDim, at = (b * kKeys + j) * kRow + h * kDim;
          for (int64_t d = 0; d < kDim; ++d)
            largest = std::max(largest, std::fabs(forms.k_new[static_cast<size_t>(from + d)]));
          EXPECT_FLOAT_EQ(scale, largest / (dtype == DType::i8 ? 127.0f : 448.0f));
          for (int64_t d = 0; d < kDim; ++d) {
            const float right = forms.k_new[static_cast<size_t>(from + d)];
            const float back = scale * load_element(forms.k.dense.data(), dtype, at + d);
            const float step =
                dtype == DType::i8 ? 0.51f * scale : std::fabs(right) / 15.9f + scale * 0x1p-10f;
            ASSERT_NEAR(back, right, step) << name_of(dtype);
          }
        }
      }
    }
  }
}

int64_t resident_pages() {
  int64_t size = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file) return 0;
  if (std::fscanf(file, "%ld %ld", &size, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident;
}

// 10,000 steps of a sequence that grows by a key each: by hand with one plan, and in the one-call form.
TEST(CacheForms, TenThousandGrowingCallsKeepTheirMemory) {
  constexpr int64_t kSteps = 10000;
  made_up::Ledger ledger;
  ContextOptions options = ledger.options();
  options.threads = 1;
  const auto context = Context::create(options);
  ASSERT_TRUE(context.ok());
  constexpr int64_t kWide = 16;
  std::vector<float> q = noise(kWide, 1), o(kWide), keys = noise(kSteps * kWide, 2);
  std::vector<int32_t> length{0};
  Tensors t{};
  t.q = Tensor(q.data(), {1, 1, 1, kWide});
  t.k = t.v = Tensor(keys.data(), {1, kSteps, 1, kWide});
  t.o = Tensor(o.data(), {1, 1, 1, kWide});
  t.kv_lengths = Tensor(length.data(), {1});
  const auto plan = tilewise::plan(*problem_from(Problem(), t), *context);
  ASSERT_TRUE(plan.ok());
  Workspace workspace(*plan);
  int64_t held = 0, calls = 0, resident = 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    length[0] = static_cast<int32_t>(step);
    if (step % 2)
      ASSERT_EQ(forward(*context, *plan, t, workspace).message(), "");
    else
      ASSERT_EQ(attention(*context, Problem(), t).message(), "");
    if (step == 100) held = ledger.bytes, calls = ledger.calls, resident = resident_pages();
  }
  EXPECT_EQ(ledger.bytes, held);
  EXPECT_EQ(ledger.calls, calls);
  EXPECT_LE(resident_pages() - resident, 256) << "pages of 4 KB since the hundredth call";
}

}  // namespace
}  // namespace tilewise
