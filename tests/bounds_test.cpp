// A plan serves every call within its bounds: smaller calls stay within the workspace that was planned, and
// give what their own plan gives.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/kernel_run.h"
#include "tilewise/attention.h"
#include "tune/problem_data.h"

namespace tilewise {
namespace {

using namespace testing_support;

constexpr int64_t kHeads = 16, kKeys = 64,
                  kDim = 36;  // no whole vectors: rows are copied, which takes the most scratch
constexpr size_t kGuardBytes = 1 << 20;

struct Call {
  Problem problem;
  tune::ProblemData data;
};

Call call_of(const Context& context, Direction direction, DType dtype, int64_t rows, int64_t keys) {
  tune::ProblemSize size;
  size.direction = direction;
  size.dtype = dtype;
  size.heads_q = size.heads_kv = kHeads;
  size.head_dim = size.head_dim_v = kDim;
  size.seqlen_q = rows;
  size.seqlen_kv = keys;
  const Problem problem = tune::make_problem(size);
  auto data = tune::ProblemData::make(context, problem, 3);
  EXPECT_TRUE(data.ok()) << data.status().message();
  if (direction == Direction::backward) {
    EXPECT_TRUE(data->fill_forward(context).ok());
  }
  return {problem, std::move(*data)};
}

std::vector<float> floats_of(const tilewise_tensor& t) {
  int64_t n = 1;
  for (int i = 0; i < t.rank; ++i) n *= t.shape[i];
  const auto* from = static_cast<const float*>(t.data);
  return {from, from + n};
}

// What the call writes: o, or the gradients.
std::vector<float> results(const Call& call) {
  const tilewise_tensors& t = call.data.tensors();
  std::vector<float> all;
  const std::vector<const tilewise_tensor*> written =
      call.problem.direction == TILEWISE_FORWARD ? std::vector{&t.o} : std::vector{&t.dq, &t.dk, &t.dv};
  for (const tilewise_tensor* tensor : written) {
    const auto values = floats_of(*tensor);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Runs with a workspace of exactly the planned size; the memory behind it must stay as it is.
void run_guarded(const Context& context, const Plan& plan, const Tensors& tensors) {
  const auto bytes = static_cast<size_t>(plan.workspace_bytes);
  std::vector<std::byte> memory(bytes + kGuardBytes + 256, std::byte{0x5a});
  auto* at = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256);
  std::memset(at, 0, TILEWISE_CONTROL_BYTES);
  const Status ran = plan.problem.direction == TILEWISE_FORWARD
                         ? forward(context, plan, tensors, {at, plan.workspace_bytes})
                         : backward(context, plan, tensors, {at, plan.workspace_bytes});
  ASSERT_TRUE(ran.ok()) << ran.message();
  size_t touched = 0;
  for (size_t i = bytes; i < bytes + kGuardBytes; ++i) touched += at[i] != std::byte{0x5a};
  EXPECT_EQ(touched, 0u) << "bytes written past the end of " << bytes;
}

TEST(Bounds, ASmallerCallStaysInThePlannedWorkspace) {
  auto context = Context::create();
  ASSERT_TRUE(context.ok());
  int ran = 0;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Kernel* kernel : kernels_of(direction)) {
      if (kernel->dtype != DType::f32) continue;
      for (const int64_t planned : {64, 12, 10, 4}) {
        const Call large = call_of(*context, direction, DType::f32, planned, kKeys);
        Limits limits;
        limits.kernel = kernel->name;
        const auto plan = tilewise::plan(large.problem, *context, limits);
        if (!plan.ok()) continue;
        for (const int64_t rows : {1, 3, 9}) {
          if (rows > planned) continue;
          SCOPED_TRACE(std::string(kernel->name) + " planned for " + std::to_string(planned) +
                       " rows, called with " + std::to_string(rows));
          const Call small = call_of(*context, direction, DType::f32, rows, kKeys - 3);
          run_guarded(*context, *plan, small.data.tensors());
          const std::vector<float> within = results(small);
          const auto own = tilewise::plan(small.problem, *context, limits);
          ASSERT_TRUE(own.ok()) << own.status().message();
          run_guarded(*context, *own, small.data.tensors());
          const std::vector<float> alone = results(small);
          ASSERT_EQ(within.size(), alone.size());
          for (size_t i = 0; i < alone.size(); ++i)
            ASSERT_NEAR(within[i], alone[i], 1e-4f) << "element " << i;
          ++ran;
        }
      }
    }
  }
  EXPECT_GT(ran, 50);
}

// Packed queries of which there are none: total_q 0 is a size, not the lack of one.
TEST(Bounds, ACallWithoutPackedQueriesStaysInThePlannedWorkspace) {
  auto context = Context::create();
  ASSERT_TRUE(context.ok());
  constexpr int64_t kTotal = 40, kLongest = 6000, kAll = 2048;
  std::vector<float> q(kTotal * kDim, 0.5f), k(kAll * kDim, 0.25f), lse(kTotal, 1.0f), dq(q), dk(k), dv(k);
  std::vector<int32_t> cu_q{0, 0}, cu_kv{0, static_cast<int32_t>(kAll)};
  const auto tensors = [&](int64_t total) {
    Tensors t{};
    t.q = t.o = t.dout = Tensor(q.data(), {total, 1, kDim});
    t.dq = Tensor(dq.data(), {total, 1, kDim});
    t.k = t.v = Tensor(k.data(), {kAll, 1, kDim});
    t.dk = Tensor(dk.data(), {kAll, 1, kDim});
    t.dv = Tensor(dv.data(), {kAll, 1, kDim});
    t.lse = Tensor(lse.data(), {1, total});
    t.cu_seqlens_q = Tensor(cu_q.data(), {2});
    t.cu_seqlens_kv = Tensor(cu_kv.data(), {2});
    return t;
  };
  Problem options;
  options.direction = TILEWISE_BACKWARD;
  options.seqlen_q = kLongest;
  const auto problem = problem_from(options, tensors(kTotal));
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  for (const Kernel* kernel : kernels_of(Direction::backward)) {
    Limits limits;
    limits.kernel = kernel->name;
    limits.threads = 1;
    const auto plan = tilewise::plan(*problem, *context, limits);
    if (!plan.ok()) continue;
    SCOPED_TRACE(kernel->name);
    run_guarded(*context, *plan, tensors(0));
    EXPECT_EQ(dk, std::vector<float>(dk.size(), 0.0f));
  }
}

}  // namespace
}  // namespace tilewise
