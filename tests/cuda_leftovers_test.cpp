// What an earlier kernel left in shared memory reaches no answer: every byte of it is NaN when each CUDA row
// begins, at lengths that leave a tile of keys and of queries nearly empty or nearly full. B04 of the guides.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/text.h"
#include "tests/support/device_call.h"
#include "tests/support/shared_memory.h"

namespace tilewise {
namespace {

using namespace testing_support;

class CudaLeftovers : public CudaTest {};

// Else the tests below would show nothing. Where another process has its turn on the device in between, what
// was left is gone: TILEWISE_TEST_ALONE.
TEST_F(CudaLeftovers, AKernelFindsWhatTheOneBeforeLeftInSharedMemory) {
  if (!std::getenv("TILEWISE_TEST_ALONE")) GTEST_SKIP() << "needs the device alone: TILEWISE_TEST_ALONE=1";
  SharedMemory shared(0);
  EXPECT_EQ(shared.fill(), shared.multiprocessors());
  EXPECT_EQ(shared.filled(), int64_t{shared.multiprocessors()} * (shared.bytes() / 4));
}

// A case, and its answer once a row has asked for it.
class Asked {
 public:
  Asked(const std::string& line, DType dtype, Direction direction)
      : data(*parse_case(line), dtype, 7), direction_(direction) {}

  const Expectation& answer() {
    if (answer_) return *answer_;
    answer_ = expect_forward(data.params(Direction::forward));
    if (direction_ == Direction::backward) {
      data.set_forward_result(*answer_);
      data.poison_outputs(direction_, Poison::nan);
      answer_ = expect_backward(data.params(direction_));
    }
    return *answer_;
  }

  CaseData data;

 private:
  Direction direction_;
  std::optional<Expectation> answer_;
};

// What each row is asked: the two largest of these that it takes.
constexpr const char* kDims[] = {"head_dim=576 head_dim_v=512",
                                 "head_dim=320 head_dim_v=256",
                                 "head_dim=256",
                                 "head_dim=248",
                                 "head_dim=192 head_dim_v=128",
                                 "head_dim=184 head_dim_v=120",
                                 "head_dim=128",
                                 "head_dim=120",
                                 "head_dim=96",
                                 "head_dim=88",
                                 "head_dim=64",
                                 "head_dim=56"};

// Where the keys lie: rows of few queries have a way of their own for each.
std::vector<std::string> places_of(const Kernel& kernel, int keys) {
  if (kernel.form != Form::split) return {""};
  return {"", " batch=9", cat(" batch=2 kv_lengths=", keys, ",1"), " batch=2 page_size=16", " page_size=3"};
}

// Whether the row took any of it.
bool run_tails(const Kernel& kernel, Direction direction, const std::string& dims, SharedMemory& shared,
               std::map<std::string, Asked>* asked) {
  bool ran = false;
  for (const int queries : {1, kernel.form == Form::split ? 3 : kernel.tile_m + 1}) {
    for (const int keys : {1, kernel.tile_n - 1, kernel.tile_n + 1}) {
      for (const std::string& place : places_of(kernel, keys)) {
        const std::string line = cat("name=tail heads_q=2 heads_kv=1 seqlen_q=", queries, " seqlen_kv=", keys,
                                     " ", dims, words_for(kernel), place);
        Asked& one = asked->try_emplace(line, line, dtype_for(kernel), direction).first->second;
        Limits limits;
        limits.kernel = kernel.name;
        if (!plan(one.data.problem(direction), *cuda_device(), limits)) continue;
        SCOPED_TRACE(cat(kernel.name, " on ", line));
        const Expectation& answer = one.answer();
        EXPECT_EQ(shared.fill(), shared.multiprocessors());
        const RunResult result =
            run_kernel(shared_context(), kernel.name, one.data, direction, {1, Poison::nan, &*cuda_device()});
        EXPECT_EQ(result.failure, "");
        ran = ran || result.ran;
        const Comparison worst = compare_outputs(one.data, direction, answer);
        EXPECT_TRUE(worst.passed()) << worst.text;
      }
    }
  }
  return ran;
}

TEST_F(CudaLeftovers, B04_KeysPastTheLastTileAreNotWhatSharedMemoryHeld) {
  SharedMemory shared(0);
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      std::map<std::string, Asked> asked;
      for (const Kernel* kernel : kernels_of(direction, true)) {
        if (dtype_for(*kernel) != dtype || (kernel->target == Target::sm90 && cuda_device()->isa != 90))
          continue;
        int left = 2;
        for (const char* dims : kDims)
          if (left > 0 && run_tails(*kernel, direction, dims, shared, &asked)) --left;
        EXPECT_LT(left, 2) << kernel->name << " ran nothing";
      }
    }
  }
}

}  // namespace
}  // namespace tilewise
