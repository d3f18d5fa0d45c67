// The one-call form: many threads, its cache, its allocator.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "api/context.h"
#include "api/ledger.h"
#include "api/made_up_call.h"

namespace tilewise {
namespace {

using made_up::Call;
using made_up::Ledger;

TEST(Attention, ManyThreadsOneContext) {
  const Context context = made_up::reference_context();
  Call expected;
  ASSERT_TRUE(attention(context, expected.options, expected.t).ok());
  const std::vector<float>& o = expected.floats[3];
  std::vector<std::thread> threads;
  for (int n = 0; n < 6; ++n) {
    threads.emplace_back([&] {
      Call call;
      for (int i = 0; i < 30; ++i) {
        std::fill(call.floats[3].begin(), call.floats[3].end(), NAN);
        const Status s = attention(context, call.options, call.t);
        ASSERT_TRUE(s.ok()) << s.message();
        for (size_t e = 0; e + 1 < o.size(); ++e) ASSERT_EQ(call.floats[3][e], o[e]);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(context.get()->plans.size(), 1u);
}

TEST(Attention, TheCacheIsBounded) {
  const Context context = made_up::reference_context();
  Call call;
  for (int i = 0; i < 200; ++i) {
    call.options.softcap = static_cast<float>(i);
    ASSERT_TRUE(attention(context, call.options, call.t).ok());
  }
  EXPECT_EQ(context.get()->plans.size(), PlanCache::kCapacity);
}

TEST(Attention, TheCallersAllocatorServesAndIsGivenBackAll) {
  Ledger ledger;
  {
    const Context context = made_up::reference_context(ledger.options());
    Call call;
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(attention(context, call.options, call.t).ok());
    EXPECT_EQ(ledger.calls, 1);
    EXPECT_GE(ledger.bytes, 256);
  }
  EXPECT_EQ(ledger.bytes, 0);
}

TEST(Attention, NoMemoryIsAnErrorWithTheSize) {
  Ledger ledger;
  ledger.refuse = true;
  const Context context = made_up::reference_context(ledger.options());
  Call call;
  const Status s = attention(context, call.options, call.t);
  EXPECT_EQ(s.code(), Code::out_of_memory);
  EXPECT_EQ(s.message(), "the allocator gave no workspace of 256 bytes for forward_reference_f64");
  ledger.refuse = false;
  EXPECT_TRUE(attention(context, call.options, call.t).ok());
}

TEST(WorkspacePool, GrowingNeedsLeaveNoTrail) {
  Ledger ledger;
  const ContextOptions o = ledger.options();
  WorkspacePool pool(o.allocate, o.release, o.allocate_user);
  for (int64_t bytes = 1 << 20; bytes < (1 << 20) + 1000; ++bytes) pool.give_back(pool.take(bytes));
  EXPECT_LE(ledger.calls, 2);
  EXPECT_LE(ledger.bytes, (1 << 20) * 5 / 4);
  const tilewise_workspace a = pool.take(100), b = pool.take(100);
  EXPECT_NE(a.data, b.data);
  pool.give_back(a);
  pool.give_back(b);
  EXPECT_EQ(pool.free_bytes(), ledger.bytes);
}

TEST(ProblemFromTensors, ReadsSizesFeaturesAndAlignment) {
  Call call;
  call.t.kv_lengths = call.whole({2}, {1, 2});
  call.t.alibi_slopes = call.real({2, 4}, 1);
  auto p = problem_from(Problem().with_causal(), call.t);
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->batch, 2);
  EXPECT_EQ(p->seqlen_q, 3);
  EXPECT_EQ(p->seqlen_kv, 5);
  EXPECT_EQ(p->heads_q, 4);
  EXPECT_EQ(p->heads_kv, 2);
  EXPECT_EQ(p->head_dim, 8);
  EXPECT_EQ(p->head_dim_v, 6);
  EXPECT_EQ(p->features,
            static_cast<uint32_t>(TILEWISE_HAS_KV_LENGTHS | TILEWISE_HAS_ALIBI | TILEWISE_HAS_LSE));
  EXPECT_EQ(p->alibi_per_batch, 1);
  EXPECT_EQ(p->alignment, 8);  // v's heads stand 6 floats apart
}

}  // namespace
}  // namespace tilewise
