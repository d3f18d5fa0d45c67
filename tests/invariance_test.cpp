// What must not depend on what: kernel and bits on threads, a batch-invariant choice on batch and length,
// memory on the context that runs a plan.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tilewise/attention.h"

namespace tilewise {
namespace {

DeviceInfo machine(int cores) {
  DeviceInfo device;
  device.cores = cores;
  device.isa = TILEWISE_ISA_SCALAR | TILEWISE_ISA_AVX2 | TILEWISE_ISA_AVX512 | TILEWISE_ISA_AVX512BF16 |
               TILEWISE_ISA_NEON;
  device.bf16_dots = 2;
  device.l1_bytes = 32 << 10;
  device.l2_bytes = 1 << 20;
  device.l3_bytes = 32 << 20;
  device.memory_bytes = int64_t{1} << 40;
  device.core_gflops = 100;
  device.memory_gbps = 20;
  return device;
}

Problem problem(int64_t batch, int64_t heads, int64_t seqlen, int64_t head_dim, bool causal,
                Direction direction) {
  Problem p;
  p.direction = static_cast<int32_t>(direction);
  p.batch = batch;
  p.heads_q = p.heads_kv = heads;
  p.seqlen_q = p.seqlen_kv = seqlen;
  p.head_dim = p.head_dim_v = head_dim;
  p.causal = causal;
  p.wants = direction == Direction::backward ? TILEWISE_WANT_DQ | TILEWISE_WANT_DK | TILEWISE_WANT_DV : 0;
  return p;
}

std::string kernel_of(const Problem& p, const DeviceInfo& device, int threads) {
  Limits limits;
  limits.threads = threads;
  const auto chosen = plan(p, device, limits);
  EXPECT_TRUE(chosen.ok()) << chosen.status().message();
  return chosen ? std::string(chosen->kernel) + " splits " + std::to_string(chosen->num_splits) : "none";
}

TEST(Invariance, TheThreadsOfACallDoNotChooseTheKernel) {
  for (int cores : {1, 2, 8, 64}) {
    const DeviceInfo device = machine(cores);
    for (Direction direction : {Direction::forward, Direction::backward}) {
      for (int64_t heads : {1, 3, 12}) {
        for (int64_t seqlen : {1, 16, 55, 128, 1000, 5000}) {
          for (int64_t head_dim : {16, 64, 128}) {
            const Problem p = problem(1, heads, seqlen, head_dim, seqlen % 2 == 0, direction);
            const std::string one = kernel_of(p, device, 1);
            for (int threads : {2, 3, 8, 64}) EXPECT_EQ(kernel_of(p, device, threads), one) << p.to_string();
          }
        }
      }
    }
  }
}

TEST(Invariance, ABatchInvariantKernelHangsNeitherOnTheBatchNorOnLengths) {
  const DeviceInfo device = machine(8);
  for (Direction direction : {Direction::forward, Direction::backward}) {
    for (const int32_t dtype : {TILEWISE_F32, TILEWISE_BF16}) {
      Problem p = problem(1, 4, 1, 64, true, direction);
      p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = p.dtype_dout = p.dtype_dq = p.dtype_dk = p.dtype_dv =
          dtype;
      p.batch_invariant = 1;
      const std::string alone = kernel_of(p, device, 0);
      for (int64_t batch : {1, 2, 7, 100}) {
        for (int64_t seqlen : {1, 33, 64, 65, 700, 4096}) {
          p.batch = batch;
          p.seqlen_q = p.seqlen_kv = seqlen;
          EXPECT_EQ(kernel_of(p, device, 0), alone) << p.to_string();
        }
      }
    }
  }
}

// A plan for more threads than the running context has once laid its scratch out for the context's, which is
// larger.
TEST(Invariance, APlanForMoreThreadsThanTheContextHasStaysInItsWorkspace) {
  const int64_t rows = 1008, dim = 16;
  const Problem p = problem(1, 1, rows, dim, false, Direction::forward);
  std::vector<float> q(static_cast<size_t>(rows * dim), 0.25f), k = q, v = q, o = q;
  Tensors t{};
  t.q = Tensor(q.data(), {1, rows, 1, dim});
  t.k = Tensor(k.data(), {1, rows, 1, dim});
  t.v = Tensor(v.data(), {1, rows, 1, dim});
  t.o = Tensor(o.data(), {1, rows, 1, dim});
  for (int planned : {2, 9, 16}) {
    for (int running : {1, 2, 8}) {
      ContextOptions options;
      options.threads = running;
      const auto context = Context::create(options);
      ASSERT_TRUE(context.ok());
      Limits limits;
      limits.threads = planned;
      const auto chosen = plan(p, *context, limits);
      ASSERT_TRUE(chosen.ok()) << chosen.status().message();
      constexpr int64_t kGuard = 16384;
      Workspace memory(chosen->workspace_bytes + kGuard);
      const tilewise_workspace whole = memory;
      auto* guard = static_cast<unsigned char*>(whole.data) + chosen->workspace_bytes;
      std::memset(guard, 0xA5, kGuard);
      ASSERT_TRUE(forward(*context, *chosen, t, {whole.data, chosen->workspace_bytes}).ok());
      for (int64_t i = 0; i < kGuard; ++i) ASSERT_EQ(guard[i], 0xA5) << "byte " << i << " past the workspace";
      for (float x : o) ASSERT_NEAR(x, 0.25f, 1e-6f);
    }
  }
}

}  // namespace
}  // namespace tilewise
