#include "core/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace tilewise {
namespace {

Problem good() {
  Problem p;
  p.batch = 2;
  p.seqlen_q = 5;
  p.seqlen_kv = 7;
  p.heads_q = 6;
  p.heads_kv = 3;
  p.head_dim = p.head_dim_v = 8;
  return p;
}

Problem good_backward() {
  Problem p = good();
  p.direction = TILEWISE_BACKWARD;
  p.wants = TILEWISE_WANT_DQ;
  return p;
}

// Each broken rule: what breaks it, and what its sentence must say.
struct Broken {
  const char* name;
  std::function<void(Problem&)> change;
  std::vector<const char*> says;
  bool backward = false;
};

const Broken kBroken[] = {
    {"head_dim 0", [](Problem& p) { p.head_dim = 0; }, {"head_dim is 0", "1 or more"}},
    {"head_dim_v 0", [](Problem& p) { p.head_dim_v = 0; }, {"head_dim_v is 0"}},
    {"heads do not divide",
     [](Problem& p) { p.heads_kv = 4; },
     {"heads_q is 6", "heads_kv is 4", "multiple"}},
    {"no heads", [](Problem& p) { p.heads_q = 0; }, {"heads_q is 0"}},
    {"no key heads", [](Problem& p) { p.heads_kv = 0; }, {"heads_kv is 0"}},
    {"negative batch", [](Problem& p) { p.batch = -1; }, {"batch is -1", "0 or more"}},
    {"negative seqlen", [](Problem& p) { p.seqlen_kv = -5; }, {"seqlen_kv is -5"}},
    {"window",
     [](Problem& p) { p.window_left = -2; },
     {"window_left is -2", "-1 (unbounded)", "sliding_window"}},
    {"window right", [](Problem& p) { p.window_right = -7; }, {"window_right is -7"}},
    {"scale",
     [](Problem& p) { p.softmax_scale = INFINITY; },
     {"softmax_scale is inf", "NaN for 1/sqrt(head_dim)"}},
    {"softcap", [](Problem& p) { p.softcap = -1; }, {"softcap is -1"}},
    {"softcap NaN", [](Problem& p) { p.softcap = NAN; }, {"softcap is nan"}},
    {"dropout", [](Problem& p) { p.dropout_p = 1.5f; }, {"dropout_p is 1.5", "below 1"}},
    {"dropout of all", [](Problem& p) { p.dropout_p = 1; }, {"dropout_p is 1", "below 1"}},
    {"dropout NaN", [](Problem& p) { p.dropout_p = NAN; }, {"dropout_p is nan"}},
    {"dtype", [](Problem& p) { p.dtype_k = TILEWISE_I32; }, {"dtype_k is i32", "f32, f16, bf16"}},
    {"unknown dtype", [](Problem& p) { p.dtype_o = 77; }, {"dtype_o is dtype 77"}},
    {"bias shape",
     [](Problem& p) {
       p.features = TILEWISE_HAS_BIAS;
       p.bias_shape[2] = 4;
     },
     {"bias_shape is [1, 1, 4, 1]", "[2, 6, 5, 7]"}},
    {"mask dtype",
     [](Problem& p) {
       p.features = TILEWISE_HAS_MASK;
       p.dtype_mask = TILEWISE_F32;
     },
     {"dtype_mask is f32", "bool or bit", "bias"}},
    {"offset without position",
     [](Problem& p) { p.features = TILEWISE_HAS_Q_OFFSET; },
     {"q_offset", "bottom-right"}},
    {"position", [](Problem& p) { p.position = 3; }, {"position is 3"}},
    {"total without packing", [](Problem& p) { p.total_q = 9; }, {"total_q is 9", "packed_q 1"}},
    {"causal", [](Problem& p) { p.causal = 2; }, {"causal is 2"}},
    {"unknown feature", [](Problem& p) { p.features = 1u << 20; }, {"features"}},
    {"alignment", [](Problem& p) { p.alignment = 24; }, {"alignment is 24", "power of two"}},
    {"overflow",
     [](Problem& p) {
       p.batch = int64_t{1} << 40;
       p.seqlen_q = int64_t{1} << 30;
     },
     {"q would have more than 2^60"}},
    {"wants in forward", [](Problem& p) { p.wants = 1; }, {"wants is 1", "forward"}},
    {"dlse in forward", [](Problem& p) { p.features = TILEWISE_HAS_DLSE; }, {"dlse", "backward"}},
    {"unknown cache dtype", [](Problem& p) { p.dtype_k = 77; }, {"dtype_k is dtype 77", "f8e4m3, i8"}},
    {"cache of integers", [](Problem& p) { p.dtype_v = TILEWISE_I32; }, {"dtype_v is i32", "f8e4m3, i8"}},
    {"i8 without scales",
     [](Problem& p) { p.dtype_k = p.dtype_v = TILEWISE_I8; },
     {"dtype_k is i8 without k_scales and v_scales"}},
    {"k alone quantised",
     [](Problem& p) {
       p.dtype_k = TILEWISE_I8;
       p.features = TILEWISE_HAS_KV_SCALES;
     },
     {"dtype_k is i8 and dtype_v is f32", "the same"}},
    {"scales of f32", [](Problem& p) { p.features = TILEWISE_HAS_KV_SCALES; }, {"come with k in f32"}},
    {"scale_rows without scales", [](Problem& p) { p.scale_rows = 16; }, {"scale_rows is 16 without"}},
    {"quantised q", [](Problem& p) { p.dtype_q = TILEWISE_I8; }, {"dtype_q is i8", "f32, f16, bf16"}},
    {"quantised backward",
     [](Problem& p) { p.dtype_k = p.dtype_v = TILEWISE_F8E4M3; },
     {"f8e4m3 with direction backward"},
     true},
    {"struct", [](Problem& p) { p.struct_bytes = 8; }, {"struct_bytes is 8"}},
    {"wants nothing", [](Problem& p) { p.wants = 0; }, {"wants is 0"}, true},
    {"dbias without bias", [](Problem& p) { p.wants = TILEWISE_WANT_DBIAS; }, {"dbias without a bias"}, true},
    {"dsinks without sinks",
     [](Problem& p) { p.wants = TILEWISE_WANT_DSINKS; },
     {"dsinks without sinks"},
     true},
    {"accumulate in 16 bit",
     [](Problem& p) {
       p.accumulate = 1;
       p.dtype_dq = TILEWISE_BF16;
     },
     {"dtype_dq is bf16", "accumulate", "f32"},
     true},
};

TEST(Validate, EveryBrokenRuleSaysFieldGivenAndAccepted) {
  for (const Broken& b : kBroken) {
    Problem p = b.backward ? good_backward() : good();
    b.change(p);
    const Status status = validate(p);
    EXPECT_EQ(status.code(), Code::invalid) << b.name;
    for (const char* part : b.says)
      EXPECT_NE(status.message().find(part), std::string::npos) << b.name << ": " << status.message();
    if (b.name != std::string("dbias without bias") && b.name != std::string("dsinks without sinks")) {
      EXPECT_NE(status.message().find("accepted"), std::string::npos) << b.name << ": " << status.message();
    }
  }
}

TEST(Validate, WhatIsLegal) {
  EXPECT_TRUE(validate(good()).ok());
  EXPECT_TRUE(validate(good_backward()).ok());
  const std::function<void(Problem&)> legal[] = {
      [](Problem& p) { p.batch = 0; },
      [](Problem& p) { p.seqlen_q = 0; },
      [](Problem& p) { p.seqlen_kv = 0; },
      [](Problem& p) { p.batch = 0, p.seqlen_q = int64_t{1} << 62; },
      [](Problem& p) { p.softmax_scale = 0; },
      [](Problem& p) { p.softmax_scale = -2; },
      [](Problem& p) { p.dropout_p = 0.9375f; },
      [](Problem& p) { p.window_left = 0, p.window_right = std::numeric_limits<int64_t>::max(); },
      [](Problem& p) { p.causal = 1, p.window_right = 3; },
      [](Problem& p) { p.packed_q = 1, p.total_q = 9; },
      [](Problem& p) { p.dtype_o = TILEWISE_BF16; },
      [](Problem& p) { p.dtype_k = p.dtype_v = TILEWISE_F8E4M3; },
      [](Problem& p) {
        p.dtype_k = p.dtype_v = TILEWISE_I8;
        p.features = TILEWISE_HAS_KV_SCALES;
        p.scale_rows = 16;
      },
      [](Problem& p) { p.features = TILEWISE_HAS_Q_OFFSET, p.position = TILEWISE_GIVEN; },
      [](Problem& p) {
        p.features = TILEWISE_HAS_BIAS;
        p.bias_shape[1] = 6, p.bias_shape[3] = 7;
      }};
  for (size_t i = 0; i < std::size(legal); ++i) {
    Problem p = good();
    legal[i](p);
    EXPECT_TRUE(validate(p).ok()) << i << ": " << validate(p).message();
  }
}

}  // namespace
}  // namespace tilewise
