// The oracle against things that need no oracle: finite differences for every gradient, answers known by
// hand, and its own parts against the whole.
#include "reference/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "reference/case_data.h"
#include "reference/elements.h"

namespace tilewise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

CaseData data_of(const std::string& line, uint64_t seed = 7) {
  auto parsed = parse_case(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return CaseData(*parsed, DType::f32, seed);
}

double* find(OracleForward* result, RowId id, int64_t head, int64_t heads, int64_t dim) {
  for (size_t r = 0; r < result->rows.size(); ++r) {
    if (result->rows[r] == id) {
      return result->o.data() + (static_cast<int64_t>(r) * heads + head) * dim;
    }
  }
  return nullptr;
}

// sum(dout * o) + sum(dlse * lse) over all rows, in fp64 (rows whose lse is -inf have no share in the
// second).
double loss(const CaseData& data) {
  const BackwardParams p = data.params(Direction::backward);
  const OracleForward f = run_oracle_forward(data.params(Direction::forward));
  double sum = 0.0;
  for (size_t r = 0; r < f.rows.size(); ++r) {
    const SequenceShape shape = shape_of_sequence(p, f.rows[r].sequence);
    if (f.rows[r].row >= shape.q_length) continue;
    for (int64_t h = 0; h < p.heads_q; ++h) {
      const size_t at = r * static_cast<size_t>(p.heads_q) + static_cast<size_t>(h);
      const int64_t dout_at = offset_of(p.dout, f.rows[r].sequence, shape.q_begin, f.rows[r].row, h);
      for (int64_t d = 0; d < p.head_dim_v; ++d) {
        sum += read_element(p.dout.data, p.dout.dtype, dout_at + d) *
               f.o[at * static_cast<size_t>(p.head_dim_v) + static_cast<size_t>(d)];
      }
      if (p.dlse.data != nullptr && f.lse[at] != -kInfinity) {
        sum += static_cast<double>(
                   p.dlse.data[offset_of(p.dlse, f.rows[r].sequence, shape.q_begin, f.rows[r].row, h)]) *
               f.lse[at];
      }
    }
  }
  return sum;
}

// d loss / d *x, by central differences at two steps (Richardson), so that the error is of fourth order.
double slope(const CaseData& data, float* x) {
  const float at = *x;
  const auto central = [&](float step) {
    const float up = at + step, down = at - step;
    *x = up;
    const double above = loss(data);
    *x = down;
    const double below = loss(data);
    *x = at;
    return (above - below) / (static_cast<double>(up) - static_cast<double>(down));
  };
  return (4.0 * central(0x1p-8f) - central(0x1p-7f)) / 3.0;
}

struct Input {
  const char* gradient;
  float* data;
  int64_t address;
};

// Checks gradients of `data` against finite differences at up to `samples` places of every tensor.
void expect_slopes(CaseData& data, int64_t samples) {
  data.set_forward_result(expect_forward(data.params(Direction::forward)));
  BackwardParams p = data.params(Direction::backward);
  const Expectation backward = expect_backward(p);
  const std::pair<const char*, CaseTensor*> inputs[] = {
      {"dq", &data.q}, {"dk", &data.k}, {"dv", &data.v}, {"dbias", &data.bias}, {"dsinks", &data.sinks}};
  int checked = 0;
  for (const auto& [name, tensor] : inputs) {
    const ExpectedOutput* gradient = backward.find(name);
    if (gradient == nullptr) continue;
    const auto count = static_cast<int64_t>(gradient->ref.size());
    const int64_t stride = std::max<int64_t>(1, count / samples) | 1;
    for (int64_t e = 0; e < count; e += stride) {
      const auto at = static_cast<size_t>(e);
      // Gradient and input share layout bshd, so the gradient's address is the input's.
      float* x = static_cast<float*>(tensor->data()) + gradient->address[at];
      if (!std::isfinite(*x)) {
        EXPECT_EQ(gradient->ref[at], 0.0) << name << " at " << gradient->coordinate(at);
        continue;
      }
      const double expected = slope(data, x);
      EXPECT_NEAR(gradient->ref[at], expected, 2e-5 * (1.0 + std::fabs(expected)))
          << name << " at " << gradient->coordinate(at) << " of " << data.source.text;
      ++checked;
    }
  }
  EXPECT_GT(checked, 10) << data.source.text;
}

class Gradients : public testing::TestWithParam<const char*> {};

TEST_P(Gradients, AreTheSlopesOfTheForward) {
  const std::string sizes =
      "name=slopes heads_q=4 heads_kv=2 seqlen_q=5 seqlen_kv=7 head_dim=3 head_dim_v=4 ";
  CaseData data = data_of(sizes + GetParam());
  expect_slopes(data, 24);
}

INSTANTIATE_TEST_SUITE_P(
    Oracle, Gradients,
    testing::Values(
        "batch=2", "batch=2 dlse=1", "batch=1 causal=bottom-right dlse=1",
        "batch=1 causal=top-left window=2,-1", "batch=2 softcap=1.5 dlse=1 softmax_scale=1",
        "batch=2 sinks=random dlse=1 causal=top-left", "batch=1 sinks=random softcap=2 dlse=1 dropout=0.4",
        "batch=2 bias=bhqk:random dlse=1", "batch=2 bias=11qk:random dlse=1 softcap=1",
        "batch=2 bias=b1qk:random dropout=0.3 dropout_seed=9", "batch=2 bias=bh1k:random sinks=random",
        "batch=2 bias=1hq1:random", "batch=2 bias=1111:random dlse=1", "batch=2 bias=bhqk:neginf:0.4 dlse=1",
        "batch=2 alibi=bh dlse=1", "batch=2 mask=b1qk:random:0.5 sinks=random dlse=1",
        "batch=2 kv_lengths=3,7 q_lengths=5,2 kv_starts=1,4 dlse=1 sinks=random",
        "batch=1 softmax_scale=-0.7 dlse=1", "batch=1 softmax_scale=0 bias=bhqk:random dlse=1",
        "batch=2 segments=list:1,1,0,2,2,0,1 dlse=1", "batch=1 kv_ranges=list:0,3,2,9,4,4,-1,2,1,6 dlse=1",
        "batch=2 q_offset=-2,3 causal=bottom-right delta=1 dlse=1 dropout=0.2"));

TEST(Gradients, OfPackedSequencesAreSlopesToo) {
  CaseData data = data_of(
      "name=packed heads_q=2 heads_kv=1 head_dim=3 cu_seqlens_q=0,3,3,7 cu_seqlens_kv=0,2,6,11 total_q=9 "
      "total_kv=12 causal=bottom-right dlse=1 sinks=random bias=bhqk:random");
  expect_slopes(data, 40);
}

TEST(Oracle, ASelectionOfRowsIsThoseRows) {
  CaseData data =
      data_of("name=rows batch=2 heads_q=4 heads_kv=2 seqlen_q=9 seqlen_kv=11 causal=bottom-right dlse=1");
  data.set_forward_result(expect_forward(data.params(Direction::forward)));
  const BackwardParams p = data.params(Direction::backward);
  const std::vector<RowId> queries{{1, 8}, {0, 2}}, keys{{0, 10}, {1, 0}, {1, 5}};

  OracleForward all = run_oracle_forward(p);
  OracleForward few = run_oracle_forward(p, queries);
  ASSERT_EQ(few.rows, queries);
  for (const RowId& id : queries) {
    for (int64_t h = 0; h < p.heads_q; ++h) {
      const double* a = find(&all, id, h, p.heads_q, p.head_dim_v);
      const double* b = find(&few, id, h, p.heads_q, p.head_dim_v);
      for (int64_t d = 0; d < p.head_dim_v; ++d) EXPECT_EQ(a[d], b[d]);
    }
  }

  const OracleBackward whole = run_oracle_backward(p);
  const OracleBackward part = run_oracle_backward(p, queries, keys);
  for (size_t r = 0; r < keys.size(); ++r) {
    const auto at = static_cast<size_t>(keys[r].sequence * p.seqlen_kv + keys[r].row);
    const auto size = static_cast<size_t>(p.heads_kv * p.head_dim);
    for (size_t n = 0; n < size; ++n) {
      EXPECT_EQ(part.dk[r * size + n], whole.dk[at * size + n]);
      EXPECT_EQ(part.dv[r * size + n], whole.dv[at * size + n]);
    }
  }
  for (size_t r = 0; r < queries.size(); ++r) {
    const auto at = static_cast<size_t>(queries[r].sequence * p.seqlen_q + queries[r].row);
    const auto size = static_cast<size_t>(p.heads_q * p.head_dim);
    for (size_t n = 0; n < size; ++n) EXPECT_EQ(part.dq[r * size + n], whole.dq[at * size + n]);
  }
}

// The backward of a part of the keys, given the whole's lse and o, adds up to the backward of the whole.
TEST(Oracle, GradientsOfPartsAddUp) {
  CaseData data = data_of("name=parts batch=1 heads_q=2 seqlen_q=6 seqlen_kv=10 head_dim=4 dlse=1");
  data.set_forward_result(expect_forward(data.params(Direction::forward)));
  BackwardParams p = data.params(Direction::backward);
  const OracleBackward whole = run_oracle_backward(p);
  int32_t four = 4;
  p.kv_lengths = {.data = &four, .dtype = DType::i32, .batch_stride = 1, .row_stride = 0, .inner_stride = 0};
  const OracleBackward head = run_oracle_backward(p);
  p.kv_lengths = {};
  p.kv_starts = {.data = &four, .dtype = DType::i32, .batch_stride = 1, .row_stride = 0, .inner_stride = 0};
  const OracleBackward tail = run_oracle_backward(p);
  for (size_t n = 0; n < whole.dq.size(); ++n) EXPECT_NEAR(head.dq[n] + tail.dq[n], whole.dq[n], 1e-12);
  for (size_t n = 0; n < whole.dk.size(); ++n) EXPECT_NEAR(head.dk[n] + tail.dk[n], whole.dk[n], 1e-12);
}

TEST(Oracle, WeightsOfARowAreItsSoftmax) {
  CaseData data = data_of(
      "name=weights batch=1 heads_q=1 seqlen_q=3 seqlen_kv=4 head_dim=1 softmax_scale=1 "
      "causal=bottom-right inputs=channel:1:0:1.0986122886681098:5:7 dtype=f32");
  const std::vector<double> weights = oracle_weights(data.params(Direction::forward), 0, 0, 0);
  ASSERT_EQ(weights.size(), 4u);
  EXPECT_NEAR(weights[0], 0.25, 1e-7);  // logits 0 and ln 3
  EXPECT_NEAR(weights[1], 0.75, 1e-7);
  EXPECT_EQ(weights[2], 0.0);
  EXPECT_EQ(weights[3], 0.0);
}

TEST(Oracle, ScoresAreShownAfterEachStep) {
  CaseData data = data_of(
      "name=stages batch=1 seqlen_q=1 seqlen_kv=2 head_dim=1 softmax_scale=0.5 softcap=2 "
      "inputs=channel:4:1:3 bias=11qk:list:0.25,-inf poison_unseen=0");
  const ForwardParams p = data.params(Direction::forward);
  EXPECT_EQ(oracle_scores(p, 0, 0, 0, ScoreStage::scaled), (std::vector<double>{2.0, 6.0}));
  const auto capped = oracle_scores(p, 0, 0, 0, ScoreStage::softcapped);
  EXPECT_NEAR(capped[0], 2.0 * std::tanh(1.0), 1e-12);
  EXPECT_NEAR(capped[1], 2.0 * std::tanh(3.0), 1e-12);
  const auto biased = oracle_scores(p, 0, 0, 0, ScoreStage::biased_and_masked);
  EXPECT_NEAR(biased[0], 2.0 * std::tanh(1.0) + 0.25, 1e-12);
  EXPECT_EQ(biased[1], -kInfinity);
  EXPECT_EQ(oracle_scores(p, 0, 0, 0, ScoreStage::softmax), (std::vector<double>{1.0, 0.0}));
}

TEST(Oracle, RowsThatSeeNoKey) {
  CaseData plain = data_of("name=empty batch=1 seqlen_q=3 seqlen_kv=2 causal=bottom-right");
  const OracleForward a = run_oracle_forward(plain.params(Direction::forward));
  EXPECT_EQ(a.lse[0], -kInfinity);
  EXPECT_EQ(a.o[0], 0.0);
  CaseData sink = data_of(
      "name=sink batch=1 seqlen_q=3 seqlen_kv=2 causal=bottom-right sinks=list:0.75 q_lengths=2 "
      "q_offset=-1");
  const OracleForward b = run_oracle_forward(sink.params(Direction::forward));
  EXPECT_EQ(b.lse[0], 0.75);        // sees no key: the sink alone
  EXPECT_EQ(b.lse[2], -kInfinity);  // padding: not even the sink
}

TEST(Oracle, ASinkTakesItsShare) {
  // One key with logit 0 and a sink of 0: half of the weight each.
  CaseData data = data_of("name=half batch=1 seqlen_q=1 seqlen_kv=1 head_dim=1 inputs=values:3 sinks=list:0");
  const OracleForward f = run_oracle_forward(data.params(Direction::forward));
  EXPECT_NEAR(f.o[0], 1.5, 1e-12);
  EXPECT_NEAR(f.lse[0], std::log(2.0), 1e-12);
}

}  // namespace
}  // namespace tilewise
