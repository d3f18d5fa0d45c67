// Faults of other kernels that a single case line cannot show: equal bits of two problems, time. The lines
// are in cases/faults.txt; numbers are the records' of the guides.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>
#include <thread>

#include "core/text.h"
#include "reference/elements.h"
#include "tests/support/kernel_run.h"

namespace tilewise {
namespace {

using namespace testing_support;

// body(kernel, data) for every kernel of a direction that takes the case, in each of the case's dtypes.
template <typename F>
void for_each_run(const Case& c, Direction direction, F&& body) {
  for (const DType dtype : c.dtypes) {
    CaseData data(c, dtype, 5);
    data.set_forward_result(expect_forward(data.params(Direction::forward)));
    int ran = 0;
    for (const Kernel* kernel : kernels_of(direction)) {
      SCOPED_TRACE(cat(kernel->name, " on ", c.text, " dtype=", name_of(dtype)));
      const RunResult result = run_kernel(shared_context(), kernel->name, data, direction);
      ASSERT_EQ(result.failure, "");
      if (!result.ran) continue;
      ++ran;
      body(*kernel, data);
    }
    EXPECT_GT(ran, 0) << c.text;
  }
}

std::vector<float> values_of(const CaseTensor& tensor) {
  std::vector<float> values;
  for_each_element(tensor.view(), [&](const std::vector<int64_t>&, int64_t at, int64_t) {
    values.push_back(static_cast<float>(read_element(tensor.data(), tensor.dtype(), at)));
  });
  return values;
}

std::vector<std::byte> bytes_of(const CaseTensor& tensor, int64_t first, int64_t count) {
  const auto size = static_cast<size_t>(element_bytes(tensor.dtype()));
  const auto* from = static_cast<const std::byte*>(tensor.data()) + static_cast<size_t>(first) * size;
  return {from, from + static_cast<size_t>(count) * size};
}

TEST(Faults, D07_AGradientOfLseAloneReachesTheLogits) {
  const Case c = parsed(
      "name=lse seqlen_q=1 seqlen_kv=2 head_dim=1 softmax_scale=1 dlse=1 dtype=f32 "
      "inputs=channel:1:0:1.0986122886681098");
  CaseData data(c, DType::f32, 1);
  *static_cast<float*>(data.dlse.data()) = 1.0f;
  *static_cast<float*>(data.dout.data()) = 0.0f;
  data.set_forward_result(expect_forward(data.params(Direction::forward)));
  for (const Kernel* kernel : kernels_of(Direction::backward)) {
    SCOPED_TRACE(kernel->name);
    const RunResult result = run_kernel(shared_context(), kernel->name, data, Direction::backward);
    ASSERT_EQ(result.failure, "");
    if (!result.ran) continue;
    // q = 1 and scale = 1, so dk is the gradient of the logits.
    EXPECT_NEAR(values_of(data.dk)[0], 0.25f, 1e-6f);
    EXPECT_NEAR(values_of(data.dk)[1], 0.75f, 1e-6f);
  }
}

TEST(Faults, F04_AWindowOfEveryEarlierKeyIsCausalBitForBit) {
  const char* sizes = "name=window heads_q=2 seqlen_q=150 head_dim=16 ";
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    std::map<std::string, std::vector<float>> causal;
    const auto first_output = [&](CaseData& data) {
      return values_of(direction == Direction::forward ? data.o : data.dq);
    };
    for_each_run(parsed(cat(sizes, "causal=bottom-right")), direction,
                 [&](const Kernel& kernel, CaseData& data) {
                   causal[cat(kernel.name, name_of(data.dtype))] = first_output(data);
                 });
    for_each_run(parsed(cat(sizes, "window=149,0")), direction, [&](const Kernel& kernel, CaseData& data) {
      EXPECT_EQ(causal[cat(kernel.name, name_of(data.dtype))], first_output(data));
    });
  }
}

TEST(Faults, C08_C09_ProductsBeyondTheRangeOfF16StayFinite) {
  for (const char* inputs : {"max_half", "half_overflow"}) {
    const Case c = parsed(cat("name=range seqlen_q=9 head_dim=64 dtype=f16 inputs=", inputs));
    for_each_run(c, Direction::forward, [](const Kernel&, CaseData& data) {
      for (const float x : values_of(data.o)) EXPECT_TRUE(std::isfinite(x));
    });
  }
}

TEST(Faults, C01_C09_EqualKeysGiveTheMeanOfV) {
  for (const char* inputs : {"sentinel", "half_overflow", "constant_k"}) {
    const Case c = parsed(cat("name=mean seqlen_q=3 seqlen_kv=3 head_dim=128 dtype=f32 inputs=", inputs));
    for_each_run(c, Direction::forward, [](const Kernel&, CaseData& data) {
      const std::vector<float> o = values_of(data.o), v = values_of(data.v);
      for (size_t d = 0; d < 128; ++d) {
        const float mean = (v[d] + v[128 + d] + v[256 + d]) / 3.0f;
        EXPECT_NEAR(o[d], mean, 2e-6f);
        EXPECT_NEAR(o[256 + d], mean, 2e-6f);
      }
    });
  }
}

// The whole weight matrix is visible with V = I, and with dout = I the backward's dV is its transpose.
TEST(Faults, P01_BackwardDropsTheSameWeights) {
  const Case c = parsed(
      "name=same heads_q=2 seqlen_q=70 head_dim=16 head_dim_v=70 inputs=identity dropout=0.48 "
      "dropout_seed=77 dropout_offset=12 causal=bottom-right dtype=f32");
  CaseData data(c, DType::f32, 5);
  const Expectation forward_answer = expect_forward(data.params(Direction::forward));
  data.set_forward_result(forward_answer);
  const std::vector<double>& weights = forward_answer.find("o")->ref;  // [row, head, key]
  for_each_run(c, Direction::backward, [&](const Kernel&, CaseData& run) {
    const std::vector<float> dv = values_of(run.dv);  // [key, head, row]
    int dropped = 0;
    for (size_t i = 0; i < 70; ++i) {
      for (size_t h = 0; h < 2; ++h) {
        for (size_t j = 0; j < 70; ++j) {
          const double weight = weights[(i * 2 + h) * 70 + j];
          EXPECT_NEAR(static_cast<double>(dv[(j * 2 + h) * 70 + i]), weight, 1e-6);
          if (j <= i && weight == 0.0) ++dropped;
        }
      }
    }
    EXPECT_GT(dropped, 2000);  // of 4970
    EXPECT_LT(dropped, 2800);
  });
}

TEST(Faults, P05_AnotherOffsetDropsOthersTheSameOneRepeats) {
  const std::string line =
      "name=offset heads_q=2 seqlen_q=40 head_dim=16 dropout=0.5 dropout_seed=3 dropout_offset=";
  for (const Kernel* kernel : kernels_of(Direction::forward)) {
    SCOPED_TRACE(kernel->name);
    std::vector<std::vector<float>> o;
    for (const char* offset : {"0", "1", "0"}) {
      CaseData data(parsed(line + offset), dtype_for(*kernel), 5);
      const RunResult result = run_kernel(shared_context(), kernel->name, data, Direction::forward);
      ASSERT_EQ(result.failure, "");
      if (result.ran) o.push_back(values_of(data.o));
    }
    if (o.empty()) continue;
    EXPECT_NE(o[0], o[1]);
    EXPECT_EQ(o[0], o[2]);
  }
}

// Threads that keep the processors and their caches busy while it lives.
class Load {
 public:
  explicit Load(int threads) {
    for (int n = 0; n < threads; ++n) {
      threads_.emplace_back([this] {
        std::vector<uint64_t> block(1 << 17, 1);
        for (uint64_t sum = 0; !stop_;) {
          for (uint64_t& x : block) sum += x = sum * 5 + 3;
        }
      });
    }
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// The later half on a machine that is busy with something else.
TEST(Faults, Q01_AHundredBackwardsAreEqual) {
  const Case c = parsed(
      "name=hundred heads_q=4 heads_kv=2 seqlen_q=70 seqlen_kv=150 head_dim=16 dtype=f32 "
      "bias=11qk:random sinks=random dlse=1 deterministic=1");
  CaseData data(c, DType::f32, 5);
  data.set_forward_result(expect_forward(data.params(Direction::forward)));
  data.poison_outputs(Direction::backward, Poison::nan);
  const Expectation answer = expect_backward(data.params(Direction::backward));
  for (const Kernel* kernel : kernels_of(Direction::backward)) {
    if (kernel->target == Target::reference) continue;
    SCOPED_TRACE(kernel->name);
    const RunResult result =
        run_kernel(shared_context(), kernel->name, data, Direction::backward, {4, Poison::nan});
    ASSERT_EQ(result.failure, "");
    if (!result.ran) continue;
    const auto bits = output_bits(data, Direction::backward, answer);
    std::optional<Load> load;
    for (int n = 0; n < 100; ++n) {
      if (n == 50) load.emplace(3);
      run_kernel(shared_context(), kernel->name, data, Direction::backward, {4, Poison::nan});
      ASSERT_EQ(first_difference(data, Direction::backward, answer, bits), "") << "run " << n;
    }
  }
}

// A sequence alone, then as the middle one of three with other lengths round it.
TEST(Faults, Q05_ASequenceDoesNotDependOnItsNeighbours) {
  const std::string options =
      " heads_q=4 heads_kv=2 head_dim=24 causal=bottom-right batch_invariant=1 dtype=f32";
  const Case alone = parsed("name=alone cu_seqlens_q=0,70 cu_seqlens_kv=0,90" + options);
  const Case among = parsed("name=among cu_seqlens_q=0,33,103,104 cu_seqlens_kv=0,200,290,291" + options);
  CaseData one(alone, DType::f32, 5), three(among, DType::f32, 9);
  const auto copy = [](const CaseTensor& from, CaseTensor* to, int64_t row) {
    const int64_t width = from.view().stride[0];
    std::memcpy(static_cast<float*>(to->data()) + row * width, from.data(),
                static_cast<size_t>(from.view().shape[0] * width) * sizeof(float));
  };
  copy(one.q, &three.q, 33);
  copy(one.dout, &three.dout, 33);
  copy(one.k, &three.k, 200);
  copy(one.v, &three.v, 200);
  one.set_forward_result(expect_forward(one.params(Direction::forward)));
  three.set_forward_result(expect_forward(three.params(Direction::forward)));
  int ran = 0;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Kernel* kernel : kernels_of(direction)) {
      SCOPED_TRACE(kernel->name);
      const RunResult a = run_kernel(shared_context(), kernel->name, one, direction);
      const RunResult b = run_kernel(shared_context(), kernel->name, three, direction, {3, Poison::large});
      ASSERT_EQ(a.failure, "");
      ASSERT_EQ(b.failure, "");
      if (!a.ran || !b.ran) continue;
      ++ran;
      if (direction == Direction::forward) {
        EXPECT_EQ(bytes_of(one.o, 0, 70 * 96), bytes_of(three.o, 33 * 96, 70 * 96));
        for (int64_t h = 0; h < 4; ++h) {
          EXPECT_EQ(bytes_of(one.lse, h * 70, 70), bytes_of(three.lse, h * 104 + 33, 70));
        }
        one.set_forward_result(expect_forward(one.params(Direction::forward)));
        three.set_forward_result(expect_forward(three.params(Direction::forward)));
      } else {
        EXPECT_EQ(bytes_of(one.dq, 0, 70 * 96), bytes_of(three.dq, 33 * 96, 70 * 96));
        EXPECT_EQ(bytes_of(one.dk, 0, 90 * 48), bytes_of(three.dk, 200 * 48, 90 * 48));
        EXPECT_EQ(bytes_of(one.dv, 0, 90 * 48), bytes_of(three.dv, 200 * 48, 90 * 48));
      }
    }
  }
  EXPECT_GT(ran, 1);
}

// Processor time of a run, which a busy machine does not stretch; below 0 where the kernel refuses.
double seconds_of(const Kernel& kernel, CaseData& data) {
  const std::clock_t start = std::clock();
  if (!run_kernel(shared_context(), kernel.name, data, Direction::forward).ran) return -1.0;
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

TEST(Faults, C15_HiddenKeysAreNotSlow) {
  const std::string line = "name=slow heads_q=4 seqlen_q=256 head_dim=32 dtype=f32 bias=11qk:";
  CaseData open(parsed(line + "random"), DType::f32, 5),
      hidden(parsed(line + "minus:0.9:1e30"), DType::f32, 5);
  for (const Kernel* kernel : kernels_of(Direction::forward)) {
    if (kernel->target == Target::reference) continue;
    // The fastest of runs that take turns: as few as show it.
    double usual = 1e9, slow = 1e9;
    for (int n = 0; n < 60 && (n < 3 || slow >= 2.0 * usual) && usual >= 0.0; ++n) {
      usual = std::min(usual, seconds_of(*kernel, open));
      slow = std::min(slow, seconds_of(*kernel, hidden));
    }
    if (usual < 0.0) continue;
    EXPECT_LT(slow, 2.0 * usual) << kernel->name;
  }
}

TEST(Faults, C_AnInfiniteVOfWhichASinkLeavesAlmostNothing) {
  const Case c = parsed(
      "name=sink heads_q=3 seqlen_q=9 seqlen_kv=40 head_dim=8 sinks=list:200,5000,1 inputs=inf_key:1 "
      "direction=forward");
  for_each_run(c, Direction::forward, [](const Kernel&, const CaseData& data) {
    for (const float value : values_of(data.o)) EXPECT_EQ(value, INFINITY);
  });
}

}  // namespace
}  // namespace tilewise
