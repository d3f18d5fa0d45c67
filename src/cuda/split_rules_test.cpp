#include "cuda/split_rules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/cost.h"
#include "cuda/made_up_device.h"
#include "cuda/split_sizes.h"
#include "plan/planner.h"

namespace tilewise {
namespace {

Problem decode(int64_t batch, int64_t keys, int64_t queries = 1) {
  Problem p;
  p.batch = batch;
  p.heads_q = 32;
  p.heads_kv = 8;
  p.head_dim = p.head_dim_v = 128;
  p.seqlen_q = queries;
  p.seqlen_kv = keys;
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = TILEWISE_BF16;
  p.alignment = 16;
  return p;
}

const Kernel& d128() { return cuda_row("forward_sm80_bf16_d128_16x128_split_simple"); }

TEST(SplitRules, FewQueriesTakeTheSplitRowAndManyDoNot) {
  for (int64_t keys : {1024, 8192, 131072}) {
    const auto made = plan(decode(1, keys), made_up_device());
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_STREQ(made->kernel, d128().name) << keys;
    EXPECT_EQ(made->num_splits, 0);
  }
  EXPECT_STREQ(plan(decode(64, 4096, 4), made_up_device())->kernel, d128().name);
  // Where no two query heads share a key: while the plain kernel takes it.
  const auto alone = [](int64_t batch, int64_t heads, int64_t keys) {
    Problem p = decode(batch, keys);
    p.heads_q = p.heads_kv = heads;
    return p;
  };
  for (const Problem& p :
       {alone(128, 32, 2048), alone(32, 32, 8192), alone(256, 8, 4096), alone(256, 32, 512)})
    EXPECT_STREQ(plan(p, made_up_device())->kernel, d128().name) << p.to_string();
  Problem capped = alone(256, 32, 512);
  capped.softcap = 20.0f;
  for (const Problem& p : {alone(512, 32, 512), capped})
    EXPECT_STRNE(plan(p, made_up_device())->kernel, d128().name) << p.to_string();
  const auto prefill = plan(decode(1, 8192, 8192), made_up_device());
  ASSERT_TRUE(prefill.ok());
  EXPECT_EQ(std::string(prefill->kernel).find("split"), std::string::npos) << prefill->kernel;
}

TEST(SplitRules, ManyRowsAndWideHeadsTakeTilesOf64Rows) {
  for (int64_t queries : {8, 16}) {
    Problem in_pages = decode(64, 4096, queries);
    // Where sequences are enough for the device, and keys lie in their own place, nothing is cut.
    EXPECT_STREQ(plan(in_pages, made_up_device())->kernel, "forward_sm90_bf16_d128_128x64_t1_simple")
        << queries;
    in_pages.page_size = 64;
    in_pages.max_pages = 64;
    in_pages.num_pages = 64 * 64 + 1;
    EXPECT_STREQ(plan(in_pages, made_up_device())->kernel, "forward_sm90_bf16_d128_64x64_split_simple")
        << queries;
  }
  Problem p = decode(16, 8192);
  p.head_dim = p.head_dim_v = 256;
  EXPECT_STREQ(plan(p, made_up_device())->kernel, "forward_sm90_bf16_d256_64x32_split_simple");
  p.page_size = 64;
  p.max_pages = 128;
  p.num_pages = 16 * 128 + 1;
  p.heads_kv = 1;
  p.head_dim = 576;
  p.head_dim_v = 512;
  for (int64_t heads : {16, 128}) {
    p.heads_q = heads;
    const auto made = plan(p, made_up_device());
    EXPECT_STREQ(made->kernel, "forward_sm90_bf16_d576_512_64x64_split_simple") << heads;
    // A part has no more rows than there are.
    EXPECT_EQ(cuda::split_scratch(cuda_row(made->kernel), p, {.num_splits = 0}),
              int64_t{cuda::kSplitBlocks} * (2 * std::min<int64_t>(heads, 64) * 514 * 4 + 8));
  }
}

TEST(SplitRules, PagesOfAnySizeAreTaken) {
  for (int64_t size : {1, 3, 16, 1000}) {
    Problem p = decode(4, 6000);
    p.page_size = size;
    p.max_pages = 6000 / size;
    p.num_pages = 4 * p.max_pages + 1;
    EXPECT_EQ(cuda::split_refuses(d128(), p, made_up_device()), "") << size;
  }
  Problem masked = decode(1, 100);
  masked.features |= TILEWISE_HAS_MASK;
  EXPECT_NE(cuda::split_refuses(d128(), masked, made_up_device()).find("has no code for a mask"),
            std::string::npos);
}

TEST(SplitRules, BatchInvariantPlansCutAtFixedKeys) {
  Problem p = decode(3, 5000);
  p.batch_invariant = 1;
  const Schedule s = cuda::split_schedule(d128(), p, made_up_device(), 1);
  EXPECT_EQ(s.num_splits, 5);
  EXPECT_EQ(cuda::split_scratch(d128(), p, s), 3 * 8 * 5 * 16 * 130 * 4);
  p.batch_invariant = 0;
  EXPECT_EQ(cuda::split_scratch(d128(), p, cuda::split_schedule(d128(), p, made_up_device(), 1)),
            2 * cuda::kSplitBlocks * 16 * 130 * 4);
}

// Reading the keys is what long caches cost; a window makes them short.
TEST(SplitCost, FollowsTheBytesThatAreRead) {
  const auto of = [&](const Problem& p) { return cuda::split_estimate(d128(), p, made_up_device(), {}); };
  const Estimate longest = of(decode(1, 131072));
  EXPECT_DOUBLE_EQ(longest.bytes, ideal_bytes(decode(1, 131072)));
  EXPECT_GT(longest.seconds, longest.bytes / 4.8e12);
  EXPECT_LT(longest.seconds, 1.4 * longest.bytes / 4.8e12);
  Problem window = decode(1, 131072);
  window.causal = 1;
  window.window_left = 1023;
  EXPECT_LT(of(window).bytes, 0.02 * longest.bytes);
  EXPECT_GT(of(decode(1, 131072, 64)).seconds, 3 * longest.seconds);
}

}  // namespace
}  // namespace tilewise
