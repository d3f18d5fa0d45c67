// The tolerance rule must accept an honest tiled fp32 attention and refuse every seeded fault.
#include "reference/tolerance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/case_data.h"
#include "reference/elements.h"
#include "reference/faulty_attention.h"

namespace tilewise {
namespace {

struct Seeded {
  Fault fault;
  const char* name;
  const char* line;  // a case that must show it
};

constexpr const char* kPlain =
    "batch=2 heads_q=4 heads_kv=2 seqlen_q=37 seqlen_kv=53 head_dim=24 causal=bottom-right "
    "window=11,-1 sinks=random dlse=1";

const Seeded kForward[] = {
    {Fault::missing_scale, "missing_scale", kPlain},
    {Fault::window_off_by_one, "window_off_by_one", kPlain},
    {Fault::causal_off_by_one, "causal_off_by_one", kPlain},
    {Fault::last_key_dropped, "last_key_dropped", kPlain},
    {Fault::softcap_after_mask, "softcap_after_mask",
     "seqlen_q=20 softcap=15 causal=top-left poison_unseen=0"},
    {Fault::bf16_accumulators, "bf16_accumulators", "seqlen_q=64 dtype=bf16 dtype_o=f32"},
    {Fault::bf16_accumulators, "bf16_accumulators_bf16_output", "seqlen_q=300 head_dim=8 dtype=bf16"},
    {Fault::weights_in_bf16, "weights_in_bf16", "seqlen_q=40 dtype=f32"},
    {Fault::scores_in_f16, "scores_in_f16", "seqlen_q=9 head_dim=64 dtype=f16 inputs=max_half"},
    {Fault::missing_rescale_of_o, "missing_rescale_of_o", kPlain},
    {Fault::missing_rescale_of_sum, "missing_rescale_of_sum", kPlain},
    {Fault::lse_base_2, "lse_base_2", kPlain},
    {Fault::lse_without_max, "lse_without_max", kPlain},
    {Fault::top_left_for_bottom_right, "top_left_for_bottom_right", kPlain},
    {Fault::interleaved_gqa, "interleaved_gqa", kPlain},
    {Fault::sink_in_every_tile, "sink_in_every_tile", kPlain},
    {Fault::sink_scaled, "sink_scaled", kPlain},
    {Fault::bias_before_softcap, "bias_before_softcap", "seqlen_q=20 softcap=2 bias=11qk:random"},
    {Fault::bias_key_as_row, "bias_key_as_row", "seqlen_q=20 bias=b1qk:random"},
    {Fault::dropout_without_scale, "dropout_without_scale", "seqlen_q=20 dropout=0.05"},
    {Fault::dropout_before_sum, "dropout_before_sum", "seqlen_q=20 dropout=0.1"},
    {Fault::padded_tail_has_weight, "padded_tail_has_weight", "seqlen_q=4 seqlen_kv=77 inputs=ones"},
    {Fault::alibi_without_offset, "alibi_without_offset", "seqlen_q=9 seqlen_kv=20 alibi=h heads_q=2"},
    {Fault::sentinel_maximum, "sentinel_maximum", "seqlen_q=3 head_dim=128 inputs=sentinel"},
    {Fault::coarse_exp, "coarse_exp", "seqlen_q=33 dtype=f32"},
    {Fault::score_times_tanh, "score_times_tanh", "seqlen_q=20 softcap=15 softmax_scale=4"},
    {Fault::padding_rows_written, "padding_rows_written",
     "batch=2 seqlen_q=9 q_lengths=5,9 position=top-left poison_unseen=0"},
    {Fault::lse_zero_for_empty, "lse_zero_for_empty", "seqlen_q=5 seqlen_kv=2 causal=bottom-right"},
};

const Seeded kBackward[] = {
    {Fault::ds_without_delta, "ds_without_delta", kPlain},
    {Fault::missing_dlse, "missing_dlse", kPlain},
    {Fault::dk_without_scale, "dk_without_scale", kPlain},
    {Fault::dv_without_dropout, "dv_without_dropout", "seqlen_q=20 dropout=0.1"},
    {Fault::dq_of_last_tile_only, "dq_of_last_tile_only", "seqlen_q=20"},
    {Fault::missing_softcap_slope, "missing_softcap_slope", "seqlen_q=20 softcap=3"},
    {Fault::dk_of_last_head_only, "dk_of_last_head_only", kPlain},
    {Fault::dbias_not_reduced, "dbias_not_reduced", "batch=2 seqlen_q=9 bias=11qk:random"},
    {Fault::dsink_without_dlse, "dsink_without_dlse", kPlain},
    {Fault::dk_accumulated_in_bf16, "dk_accumulated_in_bf16", "seqlen_q=64 dtype=bf16 dtype_grad=f32"},
    {Fault::printed_ds_formula, "printed_ds_formula", "seqlen_q=20"},
    {Fault::padding_rows_in_dk, "padding_rows_in_dk",
     "batch=2 seqlen_q=9 q_lengths=5,9 position=top-left poison_unseen=0"},
    {Fault::accumulate_overwrites, "accumulate_overwrites", "seqlen_q=9 accumulate=1 dtype_grad=f32"},
    {Fault::window_off_by_one, "window_off_by_one", kPlain},
    {Fault::interleaved_gqa, "interleaved_gqa", kPlain},
    {Fault::weights_in_bf16, "weights_in_bf16", "seqlen_q=40 dtype=f32"},
};

// Largest share over outputs and the case's dtypes.
double largest_share(const std::string& line, Fault fault, Direction direction, uint64_t seed,
                     std::string* text) {
  auto parsed = parse_case("name=seeded " + line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  double largest = 0.0;
  for (const DType dtype : parsed->dtypes) {
    CaseData data(*parsed, dtype, seed);
    Expectation expected = expect_forward(data.params(Direction::forward));
    if (direction == Direction::backward) data.set_forward_result(expected);
    data.poison_outputs(direction, Poison::nan);
    const BackwardParams params = data.params(direction);
    if (direction == Direction::backward) expected = expect_backward(params);
    const TiledAttention attention{params, fault};
    direction == Direction::forward ? attention.forward() : attention.backward();
    const Comparison worst = compare_outputs(data, direction, expected);
    if (worst.share >= largest) {
      largest = worst.share;
      *text = worst.text;
    }
  }
  return largest;
}

TEST(Tolerance, RefusesEverySeededForwardFaultAndNotTheHonestRun) {
  std::string text;
  for (const Seeded& s : kForward) {
    EXPECT_LE(largest_share(s.line, Fault::none, Direction::forward, 11, &text), 1.0) << s.line << "\n"
                                                                                      << text;
    const double share = largest_share(s.line, s.fault, Direction::forward, 11, &text);
    EXPECT_GT(share, 1.0) << s.name << " passes: " << text;
  }
}

TEST(Tolerance, RefusesEverySeededBackwardFaultAndNotTheHonestRun) {
  std::string text;
  for (const Seeded& s : kBackward) {
    EXPECT_LE(largest_share(s.line, Fault::none, Direction::backward, 11, &text), 1.0) << s.line << "\n"
                                                                                       << text;
    const double share = largest_share(s.line, s.fault, Direction::backward, 11, &text);
    EXPECT_GT(share, 1.0) << s.name << " passes: " << text;
  }
}

// Tensor cores take weights in 16 bits, rounded before the row's sum is known. With a single row the naive
// run's error is one draw of luck, so the allowance must not rest on one order of rounding alone.
TEST(Tolerance, AcceptsWeightsOf16BitsInASingleRow) {
  std::string text;
  for (const char* keys : {"2", "5", "20", "97"}) {
    const std::string line = std::string("seqlen_q=1 seqlen_kv=") + keys +
                             " heads_q=1 heads_kv=1 head_dim=128 dtype=bf16 dtype_o=f32";
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const double share = largest_share(line, Fault::weights_in_bf16, Direction::forward, seed, &text);
      EXPECT_LE(share, 1.0) << keys << " keys, seed " << seed << ": " << text;
    }
  }
}

// Its keys weigh next to nothing beside the sink: where their weights are rounded, and so by how much, is not
// where they are if the sink counts as a score.
TEST(Tolerance, AcceptsWeightsOf16BitsBesideALargeSink) {
  std::string text;
  for (const char* keys : {"3", "12", "36"}) {
    const std::string line = std::string("seqlen_q=1 seqlen_kv=") + keys +
                             " heads_q=1 heads_kv=1 head_dim=17 dtype=bf16 dtype_o=f32 softcap=30 "
                             "inputs=logits:-100:-90 sinks=random";
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const double share = largest_share(line, Fault::weights_in_bf16, Direction::forward, seed, &text);
      EXPECT_LE(share, 1.0) << keys << " keys, seed " << seed << ": " << text;
    }
  }
}

TEST(Tolerance, MismatchInKindIsRefusedWhateverTheAllowance) {
  auto parsed = parse_case("name=kind seqlen_q=3 seqlen_kv=4 head_dim=4");
  CaseData data(*parsed, DType::f32, 1);
  const ForwardParams params = data.params(Direction::forward);
  const Expectation expected = expect_forward(params);
  TiledAttention{data.params(Direction::forward), Fault::none}.forward();
  EXPECT_TRUE(compare_outputs(data, Direction::forward, expected).passed());
  static_cast<float*>(data.o.data())[5] = std::numeric_limits<float>::quiet_NaN();
  const Comparison worst = compare_outputs(data, Direction::forward, expected);
  EXPECT_TRUE(std::isinf(worst.share));
  EXPECT_EQ(worst.worst, 5u);
  EXPECT_NE(worst.text.find("o at batch 0, row 1, head 0, dim 1"), std::string::npos) << worst.text;
}

// An overflow of the output's dtype is not an error where the exact answer overflows too.
TEST(Tolerance, NonFiniteIsComparedAfterRoundingToTheOutput) {
  ExpectedOutput output;
  output.name = "o";
  output.dtype = DType::f16;
  output.address = {0};
  output.group = {0};
  output.ref = {70000.0};
  output.naive = {65504.0};
  output.terms = {70000.0};
  output.naive_error = {0.0};
  output.extent = {1};
  uint16_t infinity = 0x7c00, largest = 0x7bff;
  EXPECT_TRUE(compare(output, &infinity).passed());
  EXPECT_FALSE(compare(output, &largest).passed());
}

}  // namespace
}  // namespace tilewise
