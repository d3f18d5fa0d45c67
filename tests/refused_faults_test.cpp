// Faults of other kernels that are refusals here; numbers are the records' of the guides.
#include <gtest/gtest.h>

#include "tests/support/kernel_run.h"

namespace tilewise {
namespace {

using namespace testing_support;

Status plan_status(const std::string& line, void (*change)(Problem*)) {
  CaseData data(parsed(line), DType::f32, 1);
  Problem problem = data.problem(Direction::forward);
  change(&problem);
  return plan(problem, shared_context().context()).status();
}

// A plan holds upper bounds; lengths are data. A sequence beyond the bound is refused, not cut.
TEST(Faults, G12_ASequenceLongerThanPlannedIsRefused) {
  CaseData data(parsed("name=bound head_dim=8 cu_seqlens_q=0,20,30 cu_seqlens_kv=0,20,30"), DType::f32, 1);
  Problem problem = data.problem(Direction::forward);
  problem.seqlen_q = problem.seqlen_kv = 19;
  const auto plan = tilewise::plan(problem, shared_context().context());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  Workspace workspace(*plan);
  const Status status =
      forward(shared_context().context(), *plan, data.tensors(Direction::forward), workspace);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("20"), std::string::npos) << status.message();
}

TEST(Faults, F05_OnlyMinusOneMeansUnbounded) {
  const Status left = plan_status("name=left window=-3,0", [](Problem*) {});
  EXPECT_EQ(left.code(), Code::invalid);
  EXPECT_NE(left.message().find("window_left"), std::string::npos) << left.message();
  const Status right = plan_status("name=right causal=bottom-right window=-1,-3", [](Problem*) {});
  EXPECT_EQ(right.code(), Code::invalid);
  EXPECT_NE(right.message().find("window_right"), std::string::npos) << right.message();
}

TEST(Faults, G06_NoHeadDimIsAnErrorNotASignal) {
  const Status status = plan_status("name=dim", [](Problem* p) { p->head_dim = 0; });
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("head_dim"), std::string::npos) << status.message();
}

TEST(Faults, I_AHeadDimThatNobodyTakesIsNamed) {
  for (const bool of_v : {false, true}) {
    const Status status = plan_status(
        "name=dim", of_v ? [](Problem* p) { p->head_dim_v = 577; } : [](Problem* p) { p->head_dim = 577; });
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(status.message().find("takes head_dim and head_dim_v up to 576; the larger is 577"),
              std::string::npos)
        << status.message();
  }
}

TEST(Faults, J_HeadsThatDoNotDivideAreAnError) {
  const Status status = plan_status("name=heads heads_q=4", [](Problem* p) { p->heads_kv = 3; });
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("heads_kv"), std::string::npos) << status.message();
}

TEST(Faults, N08_ACacheOfTwoTypesIsRefusedBySentence) {
  const Status status =
      plan_status("name=mixed heads_q=2 seqlen_q=1 seqlen_kv=20 head_dim=64 dtype_kv=i8 direction=forward",
                  [](Problem* p) { p->dtype_v = TILEWISE_F8E4M3; });
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_EQ(status.message(),
            "dtype_k is i8 and dtype_v is f8e4m3; accepted: the same, where one is f8e4m3 or i8");
}

TEST(Faults, L03_AMaskLargerThanTheSequenceIsAnError) {
  const Status status =
      plan_status("name=mask seqlen_q=20 mask=11qk:open", [](Problem* p) { p->mask_shape[3] = 32; });
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("mask"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tilewise
