// One query, or a few, over caches on a device, as the planner cuts them: caches of every kind of length, and
// batches so large that a block takes several key heads.

#include <string>
#include <vector>

#include "core/text.h"
#include "tests/support/device_call.h"

namespace tilewise {
namespace {

using namespace testing_support;
constexpr Direction kForward = Direction::forward;

class CudaDecode : public CudaTest {};

// At lengths about the ends of pages, of steps and of parts; what no query sees, in the last page and in
// pages of nobody, is NaN.
TEST_F(CudaDecode, M02_NoLengthOfAPagedCacheGivesNaN) {
  for (const std::string kind :
       {"head_dim=128", "head_dim=64", "head_dim=128 dtype_kv=f8e4m3", "head_dim=256"}) {
    for (const std::string form : {"", " batch_invariant=1"}) {
      for (const int n : {1, 15, 16, 17, 127, 129, 1023, 1024, 1025, 1041}) {
        DeviceCall call(cat("name=step batch=2 heads_q=2 heads_kv=1 seqlen_q=1 seqlen_kv=1100 page_size=16 ",
                            "kv_lengths=", n, ",", n * 37 % 1100 + 1, " ", kind, form),
                        DType::bf16);
        ASSERT_EQ(run(call).message(), "") << call.source.text;
        call.check(call.source.text);
      }
    }
  }
}

// Many sequences of heads that few rows share: in their own place, in pages and of any length, the same bits.
TEST_F(CudaDecode, ManySequencesWhoseHeadsHaveFewRows) {
  const struct {
    int batch;
    DType dtype;
    const char* rest;
  } cases[] = {
      {140, DType::bf16, "heads_q=8 heads_kv=8 seqlen_q=1 seqlen_kv=40 "},
      {140, DType::f16, "heads_q=16 heads_kv=8 seqlen_q=1 seqlen_kv=40 sinks=random "},
      {140, DType::bf16, "heads_q=8 heads_kv=8 seqlen_q=2 seqlen_kv=40 causal=bottom-right window=30,-1 "},
      {70, DType::bf16, "heads_q=32 heads_kv=32 seqlen_q=1 seqlen_kv=24 "}};
  for (const auto& [batch, dtype, rest] : cases) {
    const std::string line = cat("name=many head_dim=128 batch=", batch, " ", rest);
    std::string lengths = "kv_lengths=";
    for (int b = 0; b < batch; ++b) lengths += cat(b ? "," : "", b * 31 % 25);
    for (const std::string& of : {std::string(), lengths}) {
      const auto placed = [&](const char* where) {
        return CaseData(*parse_case(line + of + where), dtype, 3);
      };
      CaseData places[] = {placed(""), placed(" page_size=16"), placed(" page_size=3 pages=reversed")};
      const Expectation answer = expect_forward(places[0].params(kForward));
      for (const Kernel* kernel : kernels_of(kForward, true)) {
        if (kernel->form != Form::split || kernel->dtype != dtype || kernel->dtype_kv != DType::none)
          continue;
        std::vector<std::byte> bits;
        for (CaseData& data : places) {
          SCOPED_TRACE(cat(kernel->name, " on ", data.source.text));
          const RunResult result =
              run_kernel(shared_context(), kernel->name, data, kForward, {1, Poison::nan, &*cuda_device()});
          ASSERT_EQ(result.failure, "");
          if (!result.ran) continue;
          const Comparison worst = compare_outputs(data, kForward, answer);
          EXPECT_TRUE(worst.passed()) << worst.text;
          const std::vector<std::byte> these = output_bits(data, kForward, answer);
          if (bits.empty()) bits = these;
          EXPECT_TRUE(these == bits) << "other bits than in the first place";
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise
