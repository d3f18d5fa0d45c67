// What must not depend on what: kernel and bits on threads, a batch-invariant choice on batch and length,
// memory on the context that runs a plan.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/text.h"
#include "tests/support/kernel_run.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

using namespace testing_support;

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

// The rows of sequence b of a dense tensor, as bytes: [rows][heads][dim], or of lse [heads][rows].
template <typename Visit>
void for_each_piece(CaseTensor& tensor, int64_t b, int64_t rows, const Visit& visit) {
  const Tensor& t = tensor.view();
  const int64_t size = element_bytes(t.type());
  auto* first = static_cast<std::byte*>(tensor.data()) + b * t.stride[0] * size;
  if (t.rank == 4) return visit(first, static_cast<size_t>(rows * t.stride[1] * size));
  for (int64_t h = 0; h < t.shape[1]; ++h)
    visit(first + h * t.stride[1] * size, static_cast<size_t>(rows * size));
}

std::vector<std::byte> rows_of(CaseTensor& tensor, int64_t b, int64_t rows) {
  std::vector<std::byte> bytes;
  for_each_piece(tensor, b, rows,
                 [&](std::byte* at, size_t count) { bytes.insert(bytes.end(), at, at + count); });
  return bytes;
}

// A sequence alone, and as the second of three, the first of which is longer: its last block of rows is then
// a whole one with rows that see nothing. The scalar kernels once summed such a block in other parts.
TEST(Invariance, ASequenceHasTheBitsThatItHasAlone) {
  constexpr int64_t kRowsQ = 44, kRowsKv = 62, kSlopes = 4;
  const char* options =
      " heads_q=4 heads_kv=2 head_dim=16 window=20,5 softcap=9 alibi=h batch_invariant=1 poison_unseen=0";
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CaseData alone(parsed(cat("name=alone seqlen_q=", kRowsQ, " seqlen_kv=", kRowsKv, options)), dtype, 5);
    CaseData among(parsed(cat("name=among batch=3 seqlen_q=90 seqlen_kv=100 q_lengths=90,", kRowsQ,
                              ",7 kv_lengths=100,", kRowsKv, ",90", options)),
                   dtype, 6);
    const auto give = [&](CaseTensor& from, CaseTensor& to, int64_t rows) {
      const std::vector<std::byte> bytes = rows_of(from, 0, rows);
      const std::byte* next = bytes.data();
      for_each_piece(to, 1, rows, [&](std::byte* at, size_t count) {
        std::memcpy(at, next, count);
        next += count;
      });
    };
    give(alone.q, among.q, kRowsQ);
    give(alone.dout, among.dout, kRowsQ);
    give(alone.k, among.k, kRowsKv);
    give(alone.v, among.v, kRowsKv);
    std::memcpy(among.alibi_slopes.data(), alone.alibi_slopes.data(), kSlopes * sizeof(float));
    alone.set_forward_result(expect_forward(alone.params(Direction::forward)));
    among.set_forward_result(expect_forward(among.params(Direction::forward)));
    give(alone.o, among.o, kRowsQ);
    give(alone.lse, among.lse, kRowsQ);
    for (const Direction direction : {Direction::backward, Direction::forward}) {
      int ran = 0;
      for (const Kernel* kernel : kernels_of(direction)) {
        if (kernel->target == Target::reference) continue;
        SCOPED_TRACE(cat(kernel->name, " ", name_of(dtype)));
        const RunResult one = run_kernel(shared_context(), kernel->name, alone, direction);
        const RunResult three = run_kernel(shared_context(), kernel->name, among, direction);
        ASSERT_EQ(one.failure, "");
        ASSERT_EQ(three.failure, "");
        if (!one.ran || !three.ran) continue;
        ++ran;
        const auto same = [&](CaseTensor& a, CaseTensor& b, int64_t rows) {
          return rows_of(a, 0, rows) == rows_of(b, 1, rows);
        };
        if (direction == Direction::forward) {
          EXPECT_TRUE(same(alone.o, among.o, kRowsQ)) << "o has other bits than alone";
          EXPECT_TRUE(same(alone.lse, among.lse, kRowsQ)) << "lse has other bits than alone";
        } else {
          EXPECT_TRUE(same(alone.dq, among.dq, kRowsQ)) << "dq has other bits than alone";
          EXPECT_TRUE(same(alone.dk, among.dk, kRowsKv)) << "dk has other bits than alone";
          EXPECT_TRUE(same(alone.dv, among.dv, kRowsKv)) << "dv has other bits than alone";
        }
      }
      EXPECT_GE(ran, 1);
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
