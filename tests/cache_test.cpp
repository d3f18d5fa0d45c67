// Caches of keys: pages and slots change no bit, nor do neighbours, threads or where a long cache is cut, and
// what cannot be read is refused.
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "api/context.h"
#include "core/text.h"
#include "cpu/row_forward.h"
#include "reference/elements.h"
#include "tests/support/kernel_run.h"

namespace tilewise {
namespace {

using namespace testing_support;

CaseData data_of(const std::string& line, DType dtype, uint64_t seed = 3) {
  return CaseData(parsed(line), dtype, seed);
}

// `answer` says where the outputs lie: it may be that of the same case without pages.
std::vector<std::byte> run_bits(const Kernel& kernel, CaseData& data, int threads,
                                const Expectation& answer) {
  const RunResult result =
      run_kernel(shared_context(), kernel.name, data, Direction::forward, {threads, Poison::nan});
  EXPECT_EQ(result.failure, "") << kernel.name;
  return result.ran ? output_bits(data, Direction::forward, answer) : std::vector<std::byte>();
}

// The same keys, wherever they lie: the same bits of the same kernel.
TEST(Cache, PagesAndSlotsChangeNoBit) {
  const char* lines[] = {
      "name=gqa batch=2 heads_q=8 heads_kv=2 seqlen_q=1 seqlen_kv=200 head_dim=64 kv_lengths=200,131",
      "name=few batch=2 heads_q=4 heads_kv=4 seqlen_q=3 seqlen_kv=90 head_dim=80 causal=bottom-right",
      "name=prefill batch=2 heads_q=4 heads_kv=2 seqlen_q=70 seqlen_kv=130 head_dim=32 causal=bottom-right",
      "name=long batch=2 heads_q=4 heads_kv=1 seqlen_q=2 seqlen_kv=1500 head_dim=32 softcap=8 sinks=random"};
  for (const std::string line : lines) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      CaseData plain = data_of(line, dtype);
      const Expectation answer = expect_forward(plain.params(Direction::forward));
      std::map<std::string, std::vector<std::byte>> bits;  // by kernel
      for (const Kernel* kernel : kernels_of(Direction::forward)) {
        if (kernel->dtype == dtype) bits[kernel->name] = run_bits(*kernel, plain, 1, answer);
      }
      for (const char* place : {" page_size=1", " page_size=3 pages=reversed", " page_size=16",
                                " page_size=64", " page_size=1000", " cache_batch_idx=3,1"}) {
        CaseData cache = data_of(line + place, dtype);
        int ran = 0;
        for (const Kernel* kernel : kernels_of(Direction::forward)) {
          if (kernel->dtype != dtype) continue;
          const auto other = run_bits(*kernel, cache, 2, answer);
          if (!other.empty()) ++ran;
          EXPECT_TRUE(other.empty() || other == bits[kernel->name])
              << kernel->name << " on " << line << place;
        }
        EXPECT_GE(ran, 2) << line << place;
      }
    }
  }
}

// A context whose device has `cores`, so that the planner cuts a long cache or does not.
Context machine(int cores) {
  auto context = Context::create();
  EXPECT_TRUE(context.ok());
  context->get()->device.cores = cores;
  return std::move(*context);
}

uint64_t isa_of(Target target) {
  switch (target) {
    case Target::avx512:
      return TILEWISE_ISA_AVX512;
    case Target::avx512bf16:
      return TILEWISE_ISA_AVX512BF16;
    case Target::avx2:
      return TILEWISE_ISA_AVX2;
    case Target::neon:
      return TILEWISE_ISA_NEON;
    default:
      return TILEWISE_ISA_SCALAR;
  }
}

std::vector<std::byte> run_on(const Context& context, const Kernel& kernel, CaseData& data,
                              const Expectation& answer, int* splits) {
  Limits limits;
  limits.kernel = kernel.name;
  const auto plan = tilewise::plan(data.problem(Direction::forward), context, limits);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  *splits = plan->num_splits;
  Workspace workspace(*plan);
  data.poison_outputs(Direction::forward, Poison::nan);
  const Status status = forward(context, *plan, data.tensors(Direction::forward), workspace);
  EXPECT_TRUE(status.ok()) << status.message();
  return output_bits(data, Direction::forward, answer);
}

// M01, M05: whether tasks of their own walk the parts of a cache, and how many cores say so, changes no bit.
TEST(Cache, SplitsChangeNoBit) {
  const Context one = machine(1), many = machine(76);
  for (const std::string line :
       {"name=long heads_q=4 heads_kv=2 seqlen_q=1 seqlen_kv=4100 head_dim=32 page_size=16",
        "name=starts batch=2 heads_q=2 seqlen_q=3 seqlen_kv=3000 head_dim=16 kv_starts=1500,0 "
        "causal=bottom-right "
        "window=1200,-1 alibi=h"}) {
    for (const Kernel* kernel : kernels_of(Direction::forward)) {
      if (kernel->form != Form::rows) continue;
      SCOPED_TRACE(cat(kernel->name, " on ", line));
      CaseData data = data_of(line + words_for(*kernel), dtype_for(*kernel));
      const Expectation answer = expect_forward(data.params(Direction::forward));
      int splits = 0;
      if (!(DeviceInfo::query()->isa & isa_of(kernel->target))) continue;
      const auto whole = run_on(one, *kernel, data, answer, &splits);
      EXPECT_EQ(splits, 1);
      const auto parts = run_on(many, *kernel, data, answer, &splits);
      EXPECT_EQ(splits, cpu::row_forward_chunks(data.source.problem.seqlen_kv));
      EXPECT_EQ(parts, whole);
    }
  }
}

// M02: parts cut as the planner likes, at lengths about the ends of pages and of parts, in one workspace;
// what no query sees, in the last page and in pages of nobody, is NaN.
TEST(Cache, M02_NoLengthOfAPagedCacheGivesNaN) {
  const Context many = machine(76);
  constexpr int kLengths[] = {1, 15, 16, 17, 63, 65, 1023, 1024, 1025, 1040, 1041, 2048, 2049};
  int ran = 0;
  for (const Kernel* kernel : kernels_of(Direction::forward)) {
    if (kernel->form != Form::rows || !(DeviceInfo::query()->isa & isa_of(kernel->target))) continue;
    std::optional<Workspace> workspace;
    for (const int n : kLengths) {
      CaseData data =
          data_of(cat("name=step batch=2 heads_q=2 seqlen_q=1 seqlen_kv=2100 head_dim=16 page_size=16 "
                      "kv_lengths=",
                      n, ",", n * 37 % 1100 + 1, words_for(*kernel)),
                  dtype_for(*kernel));
      SCOPED_TRACE(cat(kernel->name, " on ", data.source.text));
      Limits limits;
      limits.kernel = kernel->name;
      const auto plan = tilewise::plan(data.problem(Direction::forward), many, limits);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      if (!workspace) workspace.emplace(*plan);
      data.poison_outputs(Direction::forward, Poison::nan);
      ASSERT_EQ(forward(many, *plan, data.tensors(Direction::forward), *workspace).message(), "");
      const Comparison worst =
          compare_outputs(data, Direction::forward, expect_forward(data.params(Direction::forward)));
      ASSERT_TRUE(worst.passed()) << worst.text;
      ++ran;
    }
  }
  EXPECT_GE(ran, static_cast<int>(std::size(kLengths)));
}

// Bits of one sequence follow from that sequence: not from the others of the batch, nor from the table.
TEST(Cache, NeighboursChangeNoBit) {
  constexpr int64_t kHeads = 8, kHeadsKv = 2, kDim = 64, kPages = 40, kPageSize = 16, kLength = 333;
  const auto fill = [](std::vector<float>& x, uint64_t seed) {
    uint64_t state = seed;
    for (float& v : x) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      v = static_cast<float>(static_cast<int64_t>(state >> 33) % 2001 - 1000) / 700.0f;
    }
  };
  std::vector<float> k(kPages * kPageSize * kHeadsKv * kDim), v(k.size());
  fill(k, 1);
  fill(v, 2);
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  // The last sequence's one query, beside `batch` - 1 others of the given length.
  const auto run = [&](int64_t batch, int32_t other, int64_t max_pages) {
    std::vector<float> q(static_cast<size_t>(batch * kHeads * kDim)), o(q.size(), -1.0f), mine(kHeads * kDim);
    fill(q, 3 + static_cast<uint64_t>(batch));
    fill(mine, 9);
    std::copy(mine.begin(), mine.end(), q.end() - kHeads * kDim);
    std::vector<int32_t> table(static_cast<size_t>(batch * max_pages), 1),
        lengths(static_cast<size_t>(batch), other);
    for (int32_t page = 0; page * kPageSize < kLength; ++page)
      table[static_cast<size_t>((batch - 1) * max_pages + page)] = 39 - page;
    lengths.back() = kLength;
    Tensors t{};
    t.q = Tensor(q.data(), {batch, 1, kHeads, kDim});
    t.k = Tensor(k.data(), {kPages, kPageSize, kHeadsKv, kDim});
    t.v = Tensor(v.data(), {kPages, kPageSize, kHeadsKv, kDim});
    t.o = Tensor(o.data(), {batch, 1, kHeads, kDim});
    t.page_table = Tensor(table.data(), {batch, max_pages});
    t.kv_lengths = Tensor(lengths.data(), {batch});
    Problem options;
    options.batch_invariant = 1;
    const Status status = attention(*context, options, t);
    EXPECT_TRUE(status.ok()) << status.message();
    return std::vector<float>(o.end() - kHeads * kDim, o.end());
  };
  const std::vector<float> alone = run(1, 0, 21);
  EXPECT_EQ(run(2, 5, 30), alone);
  EXPECT_EQ(run(7, 400, 40), alone);
  EXPECT_EQ(run(33, 0, 21), alone);
}

struct Engine {
  static constexpr int64_t kBatch = 2, kPages = 5, kPageSize = 4, kMaxPages = 3, kHeads = 2, kDim = 8;
  std::vector<float> q = std::vector<float>(kBatch * kHeads * kDim, 0.5f), o = q;
  std::vector<float> k = std::vector<float>(kPages * kPageSize * kHeads * kDim, 0.25f), v = k;
  std::vector<int32_t> table{1, 2, -1, 3, 4, 9}, lengths{7, 8};
  Tensors t{};
  Problem options;

  Engine() {
    t.q = Tensor(q.data(), {kBatch, 1, kHeads, kDim});
    t.k = Tensor(k.data(), {kPages, kPageSize, kHeads, kDim});
    t.v = Tensor(v.data(), {kPages, kPageSize, kHeads, kDim});
    t.o = Tensor(o.data(), {kBatch, 1, kHeads, kDim});
    t.page_table = Tensor(table.data(), {kBatch, kMaxPages});
    t.kv_lengths = Tensor(lengths.data(), {kBatch});
  }
  Status run(const Context& context) { return attention(context, options, t); }
};

void expect_refusal(const Status& status, const char* says) {
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
}

// Whether lengths are checked or clamped elsewhere: a page that is not there is another sequence's.
TEST(Cache, RefusesWhatIsNotThere) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  EXPECT_TRUE(Engine().run(*context).ok()) << "entries behind a sequence's length may hold anything";
  {
    Engine e;
    e.table[4] = 5;
    expect_refusal(e.run(*context), "page_table of sequence 1 entry 1 is 5; accepted: 0 to 4");
    e.table[4] = -1;
    expect_refusal(e.run(*context), "page_table of sequence 1 entry 1 is -1");
    e.options.with_window(2, -1);
    e.lengths[1] = 12;
    e.table[5] = 0;
    EXPECT_TRUE(e.run(*context).ok()) << "a page that no window reaches may have been given away";
  }
  {
    Engine e;
    std::vector<int32_t> queries{1, 0};
    e.t.q_lengths = Tensor(queries.data(), {2});
    e.table[3] = e.table[4] = -1;
    const Status status = e.run(*context);
    EXPECT_TRUE(status.ok()) << "of a sequence without queries no page is read; " << status.message();
  }
  {
    Engine e;
    std::vector<int32_t> cu{0, 4, 8};
    e.t.cu_seqlens_kv = Tensor(cu.data(), {3});
    expect_refusal(e.run(*context),
                   "page_table comes with cu_seqlens_kv; accepted: packed keys or a cache of them, not both");
  }
  {
    Engine e;
    e.lengths[0] = 13;
    expect_refusal(e.run(*context), "kv_lengths[0] is 13; accepted: 0 to 12, the rows of its pages");
    e.lengths[0] = -1;
    expect_refusal(e.run(*context), "kv_lengths[0] is -1");
  }
  {
    Engine e;
    e.t.page_table = Tensor(e.table.data(), {3, 2});
    expect_refusal(e.run(*context), "q has batch 2 and page_table has batch 3");
    e.t.page_table = Tensor(e.table.data(), {6});
    expect_refusal(e.run(*context), "page_table has shape [6]; accepted: 2 dimensions = [batch, max_pages]");
    e.t.page_table = Tensor(e.q.data(), {2, 3});
    expect_refusal(e.run(*context), "page_table is f32; accepted: i32");
  }
  {
    Engine e;
    int32_t slots[] = {0, 5};
    e.t.page_table = Tensor();
    e.t.cache_batch_idx = Tensor(slots, {2});
    e.lengths = {4, 4};
    expect_refusal(e.run(*context), "cache_batch_idx[1] is 5; accepted: 0 to 4, the slots of k");
    slots[1] = 4;
    EXPECT_TRUE(e.run(*context).ok());
    e.t.page_table = Tensor(e.table.data(), {2, 3});
    expect_refusal(e.run(*context), "cache_batch_idx comes with page_size");
  }
}

TEST(Cache, APlanServesCallsWithinItsBounds) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  Engine e;
  auto problem = problem_from(e.options, e.t);
  ASSERT_TRUE(problem.ok());
  EXPECT_EQ(problem->page_size, 4);
  EXPECT_EQ(problem->max_pages, 3);
  EXPECT_EQ(problem->num_pages, 5);
  EXPECT_EQ(problem->seqlen_kv, 12);
  EXPECT_NE(problem->to_string().find("paged 3 of 5 pages of 4 rows"), std::string::npos)
      << problem->to_string();
  const auto plan = tilewise::plan(*problem, *context);
  ASSERT_TRUE(plan.ok());
  Workspace workspace(*plan);
  Engine fewer;
  fewer.table = {1, 2, 3, 4};
  fewer.t.page_table = Tensor(fewer.table.data(), {2, 2});
  EXPECT_TRUE(forward(*context, *plan, fewer.t, workspace).ok());
  Engine more;
  std::vector<int32_t> wide(8, 1);
  more.t.page_table = Tensor(wide.data(), {2, 4});
  expect_refusal(forward(*context, *plan, more.t, workspace),
                 "page_table has max_pages 4; accepted: up to 3");
}

}  // namespace
}  // namespace tilewise
