// One query, or a few, over caches on a device, as the planner cuts them: caches of every kind of length, and
// batches so large that a block takes several key heads.

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
      for (const int n : {1, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025, 1041, 2047, 2048, 2049}) {
        DeviceCall call(cat("name=step batch=3 heads_q=4 heads_kv=2 seqlen_q=1 seqlen_kv=2100 page_size=16 ",
                            "kv_lengths=", n, ",2100,", n * 37 % 2100 + 1, " ", kind, form),
                        DType::bf16);
        ASSERT_EQ(run(call).message(), "") << call.source.text;
        call.check(call.source.text);
      }
    }
  }
}

// Many sequences of heads that few rows share: in their own place, in pages and of any length, the same bits.
TEST_F(CudaDecode, ManySequencesWhoseHeadsHaveFewRows) {
  std::string lengths = " kv_lengths=";
  for (int b = 0; b < 140; ++b) lengths += cat(b ? "," : "", b * 31 % 61);
  for (const std::string line :
       {"name=heads batch=140 heads_q=8 heads_kv=8 seqlen_q=1 seqlen_kv=60 head_dim=128",
        "name=pairs batch=140 heads_q=16 heads_kv=8 seqlen_q=1 seqlen_kv=60 head_dim=128 sinks=random",
        "name=queries batch=140 heads_q=8 heads_kv=8 seqlen_q=2 seqlen_kv=60 head_dim=128 "
        "causal=bottom-right "
        "window=30,-1",
        "name=all batch=140 heads_q=32 heads_kv=32 seqlen_q=1 seqlen_kv=60 head_dim=128"}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const std::string& of : {std::string(), lengths}) {
        CaseData plain(*parse_case(line + of), dtype, 3);
        const Expectation answer = expect_forward(plain.params(kForward));
        for (const Kernel* kernel : kernels_of(kForward, true)) {
          if (kernel->form != Form::split || kernel->dtype != dtype || kernel->dtype_kv != DType::none)
            continue;
          const auto bits = [&](CaseData& data) {
            SCOPED_TRACE(cat(kernel->name, " on ", data.source.text));
            const RunResult result =
                run_kernel(shared_context(), kernel->name, data, kForward, {1, Poison::nan, &*cuda_device()});
            EXPECT_EQ(result.failure, "");
            if (!result.ran) return std::vector<std::byte>();
            const Comparison worst = compare_outputs(data, kForward, answer);
            EXPECT_TRUE(worst.passed()) << worst.text;
            return output_bits(data, kForward, answer);
          };
          const std::vector<std::byte> in_place = bits(plain);
          for (const char* place : {" page_size=16", " page_size=3 pages=reversed"}) {
            CaseData paged(*parse_case(line + of + place), dtype, 3);
            const std::vector<std::byte> other = bits(paged);
            EXPECT_TRUE(other.empty() || other == in_place) << kernel->name << " on " << line << place;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise
