// What a call says about tensors that do not fit.
#include <gtest/gtest.h>

#include <functional>

#include "api/made_up_call.h"

namespace tilewise {
namespace {

using made_up::Call;

struct Bad {
  const char* name;
  std::function<void(Call&)> bend;
  std::vector<const char*> says;
};

const Bad kForward[] = {
    {"no q", [](Call& c) { c.t.q = Tensor(); }, {"q is missing"}},
    {"no o", [](Call& c) { c.t.o = Tensor(); }, {"o is missing"}},
    {"q dimensions",
     [](Call& c) {
       c.t.q = c.real({3, 4, 8}, 1);
     },
     {"q has shape [3, 4, 8]", "4 dimensions", "seqlen_q"}},
    {"batch",
     [](Call& c) {
       c.t.k = c.real({3, 5, 2, 8}, 1);
     },
     {"q has batch 2", "k has batch 3"}},
    {"k's dim",
     [](Call& c) {
       c.t.k = c.real({2, 5, 2, 7}, 1);
     },
     {"k has shape [2, 5, 2, 7]", "[2, 5, 2, 8]", "head_dim"}},
    {"v's length",
     [](Call& c) {
       c.t.v = c.real({2, 4, 2, 6}, 1);
     },
     {"v has shape [2, 4, 2, 6]", "[2, 5, 2, 6]"}},
    {"o's shape",
     [](Call& c) {
       c.t.o = c.real({2, 3, 4, 8}, 0);
     },
     {"o has shape [2, 3, 4, 8]", "[2, 3, 4, 6]"}},
    {"heads",
     [](Call& c) {
       c.t.k = c.real({2, 5, 3, 8}, 1);
     },
     {"heads_q is 4", "heads_kv is 3"}},
    {"lse's shape",
     [](Call& c) {
       c.t.lse = c.real({2, 3, 4}, 0);
     },
     {"lse has shape [2, 3, 4]", "[2, 4, 3]", "heads_q, seqlen_q"}},
    {"lse's dtype", [](Call& c) { c.t.lse.dtype = TILEWISE_BF16; }, {"lse is bf16", "f32"}},
    {"inner stride",
     [](Call& c) {
       c.t.q.stride[3] = 2;
       c.t.q.stride[2] = 16;
     },
     {"q has innermost stride 2", "accepted: 1"}},
    {"read-only", [](Call& c) { c.t.o.flags = TILEWISE_READ_ONLY; }, {"o is read-only"}},
    {"no data", [](Call& c) { c.t.v.data = nullptr; }, {"v has data NULL", "[2, 5, 2, 6]"}},
    {"repeating output", [](Call& c) { c.t.o.stride[1] = 0; }, {"o has shape", "share memory"}},
    {"overlapping rows", [](Call& c) { c.t.o.stride[2] = 3; }, {"o has shape", "share memory"}},
    {"device", [](Call& c) { c.t.k.device_kind = TILEWISE_CUDA; }, {"k is on CUDA device 0", "CPU"}},
    {"o is q's memory", [](Call& c) { c.t.o.data = c.t.q.data; }, {"o overlaps q"}},
    {"o inside v", [](Call& c) { c.t.o.data = static_cast<float*>(c.t.v.data) + 3; }, {"o overlaps v"}},
    {"misaligned",
     [](Call& c) { c.t.q.data = static_cast<char*>(c.t.q.data) + 1; },
     {"q is not aligned to 4 bytes"}},
    {"stride out of range", [](Call& c) { c.t.k.stride[0] = INT64_MAX / 2; }, {"k has shape", "past 64-bit"}},
    {"kv_lengths shape",
     [](Call& c) {
       c.t.kv_lengths = c.whole({3}, {1, 1, 1});
     },
     {"kv_lengths has shape [3]", "[2]", "[batch]"}},
    {"kv_lengths dtype", [](Call& c) { c.t.kv_lengths = c.real({2}, 1); }, {"kv_lengths is f32", "i32"}},
    {"bias rank",
     [](Call& c) {
       c.t.bias = c.real({3, 5}, 1);
     },
     {"bias has shape [3, 5]", "4 dimensions"}},
    {"bias shape",
     [](Call& c) {
       c.t.bias = c.real({1, 1, 2, 5}, 1);
     },
     {"bias_shape is [1, 1, 2, 5]", "[2, 4, 3, 5]"}},
    {"mask dtype",
     [](Call& c) {
       c.t.mask = c.real({1, 1, 3, 5}, 1);
     },
     {"dtype_mask is f32"}},
    {"half a pair of segment ids",
     [](Call& c) {
       c.t.segment_ids_q = c.whole({2, 3}, {0, 0, 0, 0, 0, 0});
     },
     {"segment_ids_kv is missing"}},
    {"ranges",
     [](Call& c) {
       c.t.kv_ranges = c.whole({2, 3}, {0, 0, 0, 0, 0, 0});
     },
     {"kv_ranges has shape [2, 3]", "3 dimensions"}},
    {"alibi",
     [](Call& c) { c.t.alibi_slopes = c.real({3}, 1); },
     {"alibi_slopes has shape [3]", "[heads_q]"}},
    {"sinks",
     [](Call& c) {
       c.t.sinks = c.real({2, 4}, 1);
     },
     {"sinks has shape [2, 4]"}},
    {"offset beyond",
     [](Call& c) {
       c.options.position = TILEWISE_GIVEN;
       c.t.q_offset_value = INT64_MAX;
     },
     {"q_offset_value is 9223372036854775807"}},
    {"q_offset without position",
     [](Call& c) {
       c.t.q_offset = c.whole({2}, {0, 0});
     },
     {"q_offset", "position given"}},
};

const Bad kBackward[] = {
    {"no dout", [](Call& c) { c.t.dout = Tensor(); }, {"dout is missing"}},
    {"no lse", [](Call& c) { c.t.lse = Tensor(); }, {"lse is missing"}},
    {"neither o nor delta", [](Call& c) { c.t.o = Tensor(); }, {"o is missing"}},
    {"dq's shape",
     [](Call& c) {
       c.t.dq = c.real({2, 3, 4, 7}, 0);
     },
     {"dq has shape [2, 3, 4, 7]", "[2, 3, 4, 8]"}},
    {"dk is dv", [](Call& c) { c.t.dv.data = c.t.dk.data; }, {"dk overlaps dv"}},
    {"dq is q", [](Call& c) { c.t.dq.data = c.t.q.data; }, {"dq overlaps q"}},
    {"dbias without bias",
     [](Call& c) {
       c.t.dbias = c.real({1, 1, 3, 5}, 0);
     },
     {"dbias without a bias"}},
    {"dbias's shape",
     [](Call& c) {
       c.t.bias = c.real({1, 4, 3, 5}, 1);
       c.t.dbias = c.real({1, 1, 3, 5}, 0);
     },
     {"dbias has shape [1, 1, 3, 5]", "[1, 4, 3, 5]"}},
    {"unwanted gradient",
     [](Call& c) { c.options.wants = TILEWISE_WANT_DQ; },
     {"dk is given, but the plan was made without it"}},
    {"nothing wanted", [](Call& c) { c.t.dq = c.t.dk = c.t.dv = Tensor(); }, {"wants is 0"}},
    {"dlse's shape",
     [](Call& c) {
       c.t.dlse = c.real({2, 4, 4}, 1);
     },
     {"dlse has shape [2, 4, 4]"}},
};

void expect_refused(const Context& context, const Bad& bad, Call& call) {
  bad.bend(call);
  const Status s = attention(context, call.options, call.t);
  EXPECT_EQ(s.code(), Code::invalid) << bad.name << ": " << s.message();
  for (const char* part : bad.says)
    EXPECT_NE(s.message().find(part), std::string::npos) << bad.name << ": " << s.message();
}

TEST(Tensors, ForwardRefusals) {
  const Context context = made_up::reference_context();
  for (const Bad& bad : kForward) {
    Call call;
    expect_refused(context, bad, call);
  }
}

TEST(Tensors, BackwardRefusals) {
  const Context context = made_up::reference_context();
  for (const Bad& bad : kBackward) {
    Call call;
    call.make_backward();
    expect_refused(context, bad, call);
  }
}

TEST(Tensors, LegalLayouts) {
  const Context context = made_up::reference_context();
  const std::function<void(Call&)> legal[] = {
      [](Call& c) { c.t.k.stride[0] = 0; },                    // one batch repeated
      [](Call& c) { c.t.q.stride[1] = c.t.q.stride[2] = 0; },  // one row, one head
      [](Call& c) { c.t.q.flags = TILEWISE_READ_ONLY; },
      [](Call& c) { c.t.v.data = static_cast<float*>(c.t.v.data); },
      [](Call& c) {
        c.t.q = Tensor(c.real({2, 4, 3, 8}, 1)).bhsd_as_bshd();
      },
      [](Call& c) {
        c.t.o = Tensor(c.real({2, 4, 3, 6}, 0)).bhsd_as_bshd();
      },
      [](Call& c) {  // q, k, v as slices of one tensor; o and lse apart
        const Tensor packed = c.real({2, 5, 8, 8}, 1);
        c.t.q = packed, c.t.k = packed, c.t.v = packed;
        c.t.q.shape[1] = 3, c.t.q.shape[2] = 4;
        c.t.k.shape[2] = c.t.v.shape[2] = 2, c.t.v.shape[3] = 6;
        c.t.k.data = static_cast<float*>(packed.data) + 32;
        c.t.v.data = static_cast<float*>(packed.data) + 48;
      },
      [](Call& c) {
        c.t.kv_lengths = c.whole({2}, {9, -4});
      },  // clamped
      [](Call& c) { c.options.causal = 1, c.options.window_left = INT64_MAX; }};
  for (size_t i = 0; i < std::size(legal); ++i) {
    Call call;
    legal[i](call);
    const Status s = attention(context, call.options, call.t);
    EXPECT_TRUE(s.ok()) << i << ": " << s.message();
  }
}

TEST(Tensors, StrideOfASize1DimensionIsIgnored) {
  const Context context = made_up::reference_context();
  Call call;
  call.t.q = Tensor(call.real({1, 3, 4, 8}, 1)).with_strides({-77, 32, 8, 1});
  call.t.k = Tensor(call.real({1, 5, 1, 8}, 1)).with_strides({0, 8, INT64_MAX, 1});
  call.t.v = Tensor(call.real({1, 5, 1, 1}, 1)).with_strides({5, 1, 9, 12345});
  call.t.o = Tensor(call.real({1, 3, 4, 1}, 0)).with_strides({0, 4, 1, 0});
  call.t.lse = Tensor(call.real({1, 4, 3}, 0)).with_strides({0, 3, 1});
  const Status s = attention(context, call.options, call.t);
  EXPECT_TRUE(s.ok()) << s.message();
}

TEST(Tensors, SlicesOfOnePackedGradientAreNotAnOverlap) {
  const Context context = made_up::reference_context();
  Call call;
  ASSERT_TRUE(attention(context, call.options, call.t).ok());
  call.make_backward();
  const Tensor packed = call.real({2, 5, 8, 8}, 0);
  call.t.dq = call.t.dk = call.t.dv = packed;
  call.t.dq.shape[1] = 3, call.t.dq.shape[2] = 4;
  call.t.dk.shape[2] = call.t.dv.shape[2] = 2, call.t.dv.shape[3] = 6;
  call.t.dk.data = static_cast<float*>(packed.data) + 32;
  call.t.dv.data = static_cast<float*>(packed.data) + 48;
  const Status s = attention(context, call.options, call.t);
  EXPECT_TRUE(s.ok()) << s.message();
}

// Values: clamped by default, refused where the context checks them.
TEST(Values, CheckedOnRequest) {
  const Bad bad[] = {{"kv_lengths",
                      [](Call& c) {
                        c.t.kv_lengths = c.whole({2}, {5, 6});
                      },
                      {"kv_lengths[1] is 6", "0 to 5"}},
                     {"negative",
                      [](Call& c) {
                        c.t.q_lengths = c.whole({2}, {-1, 3});
                      },
                      {"q_lengths[0] is -1", "0 to 3"}},
                     {"kv_starts",
                      [](Call& c) {
                        c.t.kv_lengths = c.whole({2}, {5, 2});
                        c.t.kv_starts = c.whole({2}, {0, 3});
                      },
                      {"kv_starts[1] is 3", "0 to 2"}},
                     {"kv_ranges",
                      [](Call& c) {
                        c.t.kv_ranges = c.whole({2, 3, 2}, {0, 5, 0, 5, 2, 1, 0, 5, 0, 5, 0, 5});
                      },
                      {"kv_ranges of sequence 0 row 2 is [2, 1)"}}};
  ContextOptions options;
  const Context lax = made_up::reference_context();
  options.check_data = 1;
  const Context strict = made_up::reference_context(options);
  for (const Bad& b : bad) {
    Call call;
    expect_refused(strict, b, call);
    EXPECT_TRUE(attention(lax, call.options, call.t).ok()) << b.name;
  }
}

struct Packed : Call {
  explicit Packed(std::vector<int32_t> offsets) {
    const auto n = static_cast<int64_t>(offsets.size());
    t.q = real({7, kHeads, kDim}, 1);
    t.k = real({7, kHeadsKv, kDim}, 1);
    t.v = real({7, kHeadsKv, kDimV}, 1);
    t.o = real({7, kHeads, kDimV}, 0);
    t.lse = real({kHeads, 7}, 0);
    t.cu_seqlens_q = t.cu_seqlens_kv = whole({n}, std::move(offsets));
  }
};

TEST(Values, PackedOffsets) {
  ContextOptions options;
  const Context lax = made_up::reference_context();
  options.check_data = 1;
  const Context strict = made_up::reference_context(options);
  const struct {
    std::vector<int32_t> offsets;
    const char* says;
  } bad[] = {{{1, 3, 7}, "cu_seqlens_q[0] is 1; accepted: 0"},
             {{0, 5, 3}, "cu_seqlens_q[2] is 3 after 5"},
             {{0, 3, 8}, "cu_seqlens_q[2] is 8; accepted: up to total_q 7"}};
  for (const auto& b : bad) {
    Packed call(b.offsets);
    const Status s = attention(strict, call.options, call.t);
    EXPECT_EQ(s.code(), Code::invalid);
    EXPECT_NE(s.message().find(b.says), std::string::npos) << s.message();
    EXPECT_TRUE(attention(lax, call.options, call.t).ok());
  }
  Packed good({0, 3, 3, 6});  // an empty sequence, and a row that belongs to none
  EXPECT_TRUE(attention(strict, good.options, good.t).ok());
  auto problem = problem_from(good.options, good.t);
  ASSERT_TRUE(problem.ok());
  EXPECT_EQ(problem->batch, 3);
  EXPECT_EQ(problem->seqlen_q, 3);
  EXPECT_EQ(problem->total_kv, 7);
  good.options.seqlen_q = good.options.seqlen_kv = 2;  // less than the longest: rows would be lost
  const Status s = attention(lax, good.options, good.t);
  EXPECT_NE(s.message().find("cu_seqlens_q gives sequence 0 3 rows; accepted: up to seqlen_q 2"),
            std::string::npos)
      << s.message();
}

}  // namespace
}  // namespace tilewise
