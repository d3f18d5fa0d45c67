#include "cpu/rules.h"

#include <gtest/gtest.h>

#include "cpu/kernels.h"

namespace tilewise {
namespace {

DeviceInfo device() {
  DeviceInfo d;
  d.kind = TILEWISE_CPU;
  d.cores = 1;
  d.isa = TILEWISE_ISA_SCALAR | TILEWISE_ISA_AVX2 | TILEWISE_ISA_AVX512 | TILEWISE_ISA_NEON;
  d.l1_bytes = 48 << 10;
  d.l2_bytes = 2 << 20;
  d.l3_bytes = 32 << 20;
  d.core_gflops = 165;
  d.memory_gbps = 12;
  return d;
}

Problem problem(Op op, int64_t seqlen_q, int64_t seqlen_kv) {
  Problem p;
  p.direction = op == Op::forward ? TILEWISE_FORWARD : TILEWISE_BACKWARD;
  p.batch = 1;
  p.heads_q = p.heads_kv = 12;
  p.head_dim = p.head_dim_v = 64;
  p.seqlen_q = seqlen_q;
  p.seqlen_kv = seqlen_kv;
  if (op == Op::backward) p.wants = TILEWISE_WANT_DQ | TILEWISE_WANT_DK | TILEWISE_WANT_DV;
  return p;
}

// The widest instruction set of this build, fp32.
const Kernel& row(Op op, Form form) {
  const Target widest = cpu_kernels().front().target;
  for (const Kernel& kernel : cpu_kernels())
    if (kernel.target == widest && kernel.dtype == DType::f32 && kernel.op == op && kernel.form == form)
      return kernel;
  throw std::runtime_error("no such row");
}

Form cheapest(Op op, int64_t seqlen_q, int64_t seqlen_kv, bool causal = false) {
  Problem p = problem(op, seqlen_q, seqlen_kv);
  p.causal = causal;
  const Target widest = cpu_kernels().front().target;
  const Kernel* best = nullptr;
  double least = 0;
  for (const Kernel& kernel : cpu_kernels()) {
    if (kernel.target != widest || kernel.op != op || !cpu::refuses(kernel, p, device()).empty()) continue;
    const double seconds = cpu::estimate(kernel, p, device(), cpu::schedule(kernel, p, device(), 1)).seconds;
    if (best && seconds >= least) continue;
    best = &kernel;
    least = seconds;
  }
  return best->form;
}

TEST(CpuRules, EachFormWhereItWasMeasuredFastest) {
  for (const Op op : {Op::forward, Op::backward}) {
    for (const int64_t seqlen : {1, 4, 16, 32, 128})
      EXPECT_EQ(cheapest(op, seqlen, seqlen), Form::small) << seqlen;
    for (const int64_t seqlen : {256, 1024}) EXPECT_EQ(cheapest(op, seqlen, seqlen), Form::fused) << seqlen;
    for (const int64_t seqlen : {20, 64, 128})
      EXPECT_EQ(cheapest(op, seqlen, seqlen, true), Form::small) << seqlen;
    EXPECT_EQ(cheapest(op, 256, 256, true), Form::fused);
  }
  EXPECT_EQ(cheapest(Op::forward, 1, 4096), Form::rows);
}

TEST(CpuRules, HeadDimsEndAt576) {
  DeviceInfo any = device();
  any.isa |= TILEWISE_ISA_AVX512BF16;
  for (const Kernel& kernel : cpu_kernels()) {
    Problem p = problem(kernel.op, 16, 16);
    p.dtype_q = static_cast<int32_t>(kernel.dtype == DType::none ? DType::f32 : kernel.dtype);
    p.dtype_k = p.dtype_v = static_cast<int32_t>(kernel.stored_kv());
    p.dtype_dout = p.dtype_q;
    p.head_dim = p.head_dim_v = 576;
    EXPECT_EQ(cpu::refuses(kernel, p, any), "") << kernel.name;
    const std::string beyond = "takes head_dim and head_dim_v up to 576; the larger is 577";
    p.head_dim = 577;
    EXPECT_EQ(cpu::refuses(kernel, p, any), beyond) << kernel.name;
    p.head_dim = 64;
    p.head_dim_v = 577;
    EXPECT_EQ(cpu::refuses(kernel, p, any), beyond) << kernel.name;
  }
}

#if defined(__x86_64__)
// What runs a bf16 forward of `seqlen` rows on a device whose dots have this rate.
std::string kernel_of_bf16(int64_t seqlen, double dots, bool causal = false, int64_t seqlen_kv = 0,
                           int64_t group = 1) {
  DeviceInfo with = device();
  with.isa |= TILEWISE_ISA_AVX512BF16;
  with.bf16_dots = dots;
  Problem p = problem(Op::forward, seqlen, seqlen_kv > 0 ? seqlen_kv : seqlen);
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = TILEWISE_BF16;
  p.heads_kv = p.heads_q / group;
  p.causal = causal;
  const Kernel* best = nullptr;
  double least = 0;
  for (const Kernel& kernel : cpu_kernels()) {
    if (kernel.op != Op::forward || kernel.dtype != DType::bf16 || !cpu::refuses(kernel, p, with).empty())
      continue;
    const double seconds = cpu::estimate(kernel, p, with, cpu::schedule(kernel, p, with, 1)).seconds;
    if (best && seconds >= least) continue;
    best = &kernel;
    least = seconds;
  }
  return best->name;
}

TEST(CpuRules, Bf16DotsAreTakenWhereTheyAreFaster) {
  for (const bool causal : {false, true}) {
    for (const int64_t seqlen : {96, 128, 256, 1024, 4096})
      EXPECT_EQ(kernel_of_bf16(seqlen, 2.0, causal), "forward_avx512bf16_bf16_64x96") << seqlen;
    for (const int64_t seqlen : {1, 8, 16, 20}) {
      EXPECT_EQ(kernel_of_bf16(seqlen, 2.0, causal), "forward_avx512bf16_bf16_small_192x192") << seqlen;
      for (const double slower : {0.5, 0.0})
        EXPECT_EQ(kernel_of_bf16(seqlen, slower, causal), "forward_avx512_bf16_small_192x192") << seqlen;
    }
    for (const int64_t seqlen : {256, 1024, 4096})
      for (const double slower : {0.5, 0.0})
        EXPECT_EQ(kernel_of_bf16(seqlen, slower, causal), "forward_avx512_bf16_64x96") << seqlen;
  }
  EXPECT_EQ(kernel_of_bf16(48, 2.0, false), "forward_avx512bf16_bf16_64x96");
  EXPECT_EQ(kernel_of_bf16(48, 2.0, true), "forward_avx512bf16_bf16_small_192x192");
}

TEST(CpuRules, Bf16DotsDecodeWhereTheyAreFaster) {
  for (const int64_t keys : {256, 1024, 2048})
    EXPECT_EQ(kernel_of_bf16(1, 2.0, false, keys), "forward_avx512bf16_bf16_rows_16x64") << keys;
  for (const int64_t keys :
       {64, 128})  // 9.0 and 17.5 us for 32 heads over 8, where `small` takes 18.6 and 37.4
    EXPECT_EQ(kernel_of_bf16(1, 2.0, false, keys, 4), "forward_avx512bf16_bf16_rows_16x64") << keys;
  for (const int64_t keys : {16384, 65536})  // from memory
    EXPECT_EQ(kernel_of_bf16(1, 2.0, false, keys), "forward_avx512bf16_bf16_rows_16x32") << keys;
  for (const int64_t keys : {256, 1024, 16384})
    for (const double slower : {0.5, 0.0})
      EXPECT_EQ(kernel_of_bf16(1, slower, false, keys), "forward_avx512_bf16_rows_16x64") << keys;
}

TEST(CpuRules, Bf16DotsTakeDoutInBf16) {
  Problem p = problem(Op::backward, 64, 64);
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_dout = TILEWISE_BF16;
  for (const Kernel& kernel : cpu_kernels()) {
    if (kernel.target != Target::avx512bf16 || kernel.op != Op::backward) continue;
    DeviceInfo with = device();
    EXPECT_EQ(cpu::refuses(kernel, p, with), "needs AVX-512 with BF16, which this CPU does not have");
    with.isa |= TILEWISE_ISA_AVX512BF16;
    EXPECT_EQ(cpu::refuses(kernel, p, with), "");
    p.dtype_dout = TILEWISE_F32;
    EXPECT_EQ(cpu::refuses(kernel, p, with), "takes dout in bf16, as it multiplies it; dout is f32");
    return;
  }
  FAIL() << "no such row";
}
#endif

TEST(CpuRules, SmallSaysWhatDoesNotFitItsTile) {
  const Kernel& forward = row(Op::forward, Form::small);
  EXPECT_EQ(cpu::refuses(forward, problem(Op::forward, 192, 192), device()), "");
  EXPECT_EQ(cpu::refuses(forward, problem(Op::forward, 1, 193), device()),
            "holds the keys of a head in one tile, up to 192; seqlen_kv is 193");
  Problem grouped = problem(Op::forward, 97, 8);
  grouped.heads_kv = 6;
  EXPECT_EQ(
      cpu::refuses(forward, grouped, device()),
      "holds the rows of a key head in one tile, up to 192 queries x query heads; the problem has 97 x 2");
  Problem biased = problem(Op::forward, 8, 8);
  biased.features |= TILEWISE_HAS_BIAS;
  EXPECT_EQ(cpu::refuses(forward, biased, device()),
            "takes plain scores within intervals of keys; the problem has a bias");
  Problem invariant = problem(Op::forward, 8, 8);
  invariant.batch_invariant = 1;
  EXPECT_NE(cpu::refuses(forward, invariant, device()).find("batch_invariant asks for a fused kernel"),
            std::string::npos);
  Problem sinks = problem(Op::backward, 8, 8);
  sinks.wants |= TILEWISE_WANT_DSINKS;
  EXPECT_EQ(cpu::refuses(row(Op::backward, Form::small), sinks, device()), "does not make dsinks");
}

}  // namespace
}  // namespace tilewise
