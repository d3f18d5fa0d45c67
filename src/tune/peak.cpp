// The register loop is compiled once for each instruction set by Highway; the host picks by name, so no
// global dispatch state is involved.
#include "tune/peak.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "tune/measure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tune/peak.cpp"
#if defined(__aarch64__)
#define HWY_COMPILE_ONLY_STATIC
#endif
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tilewise::tune::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 12 sums and 2 factors fit 16 registers, and 12 >= latency 4 x 2 units; four-unit cores want 16 sums.
double fma_rounds(int64_t rounds) {
  const hn::ScalableTag<float> tag;
  constexpr bool kMany = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;
  if (rounds < 0) return (kMany ? 16 : 12) * 2.0 * static_cast<double>(hn::Lanes(tag));
  const auto x = hn::Set(tag, 0.999f), y = hn::Set(tag, 1e-3f);
  auto a0 = hn::Iota(tag, 0), a1 = hn::Iota(tag, 1), a2 = hn::Iota(tag, 2), a3 = hn::Iota(tag, 3),
       a4 = hn::Iota(tag, 4), a5 = hn::Iota(tag, 5), a6 = hn::Iota(tag, 6), a7 = hn::Iota(tag, 7),
       a8 = hn::Iota(tag, 8), a9 = hn::Iota(tag, 9), a10 = hn::Iota(tag, 10), a11 = hn::Iota(tag, 11),
       a12 = hn::Iota(tag, 12), a13 = hn::Iota(tag, 13), a14 = hn::Iota(tag, 14), a15 = hn::Iota(tag, 15);
  for (int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, x, y), a1 = hn::MulAdd(a1, x, y), a2 = hn::MulAdd(a2, x, y);
    a3 = hn::MulAdd(a3, x, y), a4 = hn::MulAdd(a4, x, y), a5 = hn::MulAdd(a5, x, y);
    a6 = hn::MulAdd(a6, x, y), a7 = hn::MulAdd(a7, x, y), a8 = hn::MulAdd(a8, x, y);
    a9 = hn::MulAdd(a9, x, y), a10 = hn::MulAdd(a10, x, y), a11 = hn::MulAdd(a11, x, y);
    if constexpr (kMany) {
      a12 = hn::MulAdd(a12, x, y), a13 = hn::MulAdd(a13, x, y);
      a14 = hn::MulAdd(a14, x, y), a15 = hn::MulAdd(a15, x, y);
    }
  }
  const auto sum01 =
      hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  const auto sum23 =
      hn::Add(hn::Add(hn::Add(a8, a9), hn::Add(a10, a11)), hn::Add(hn::Add(a12, a13), hn::Add(a14, a15)));
  return static_cast<double>(hn::GetLane(hn::Add(sum01, sum23)));
}

#if HWY_TARGET == HWY_AVX3
// AVX512-BF16's dots of pairs: 4 operations a lane. Named in assembly, because the target does not have them.
double dot_rounds(int64_t rounds) {
  const hn::ScalableTag<float> tag;
  constexpr int kSums = 16;
  if (rounds < 0) return kSums * 4.0 * static_cast<double>(hn::Lanes(tag));
  const auto x = hn::BitCast(tag, hn::Set(hn::ScalableTag<uint32_t>(), 0x3c003c00u));
  hn::Vec<decltype(tag)> sums[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sums[i] = hn::Iota(tag, static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (auto& sum : sums) __asm__("vdpbf16ps %1, %1, %0" : "+v"(sum.raw) : "v"(x.raw));
  }
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) sums[0] = hn::Add(sums[0], sums[i]);
  return static_cast<double>(hn::GetLane(sums[0]));
}
#endif

// Exclusive or of everything: one load and one cheap operation a vector.
double read_all(const float* data, int64_t count) {
  const hn::ScalableTag<float> tag;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(tag));
  auto s0 = hn::Zero(tag), s1 = s0, s2 = s0, s3 = s0;
  for (int64_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    s0 = hn::Xor(s0, hn::Load(tag, data + i)), s1 = hn::Xor(s1, hn::Load(tag, data + i + lanes));
    s2 = hn::Xor(s2, hn::Load(tag, data + i + 2 * lanes)),
    s3 = hn::Xor(s3, hn::Load(tag, data + i + 3 * lanes));
  }
  return static_cast<double>(hn::GetLane(hn::Xor(hn::Xor(s0, s1), hn::Xor(s2, s3))));
}

}  // namespace tilewise::tune::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewise::tune {
namespace {

constexpr double kBurst = 5e-3;               // seconds
constexpr int64_t kChunk = int64_t{1} << 20;  // bytes
std::atomic<double> g_sink{0};                // keeps results alive

struct Loops {
  double (*fma)(int64_t rounds);
  double (*read)(const float* data, int64_t count);
};

Loops loops_for([[maybe_unused]] Target target) {
#if HWY_TARGETS & HWY_AVX3
  if (target == Target::avx512) return {&N_AVX3::fma_rounds, &N_AVX3::read_all};
  if (target == Target::avx512bf16) return {&N_AVX3::dot_rounds, &N_AVX3::read_all};
#endif
#if HWY_TARGETS & HWY_AVX2
  if (target == Target::avx2) return {&N_AVX2::fma_rounds, &N_AVX2::read_all};
#endif
  return {&HWY_STATIC_DISPATCH(fma_rounds), &HWY_STATIC_DISPATCH(read_all)};
}

}  // namespace

Target widest_target(uint64_t isa) {
  if (isa & TILEWISE_ISA_AVX512) return Target::avx512;
  if (isa & TILEWISE_ISA_AVX2) return Target::avx2;
  if (isa & TILEWISE_ISA_NEON) return Target::neon;
  return Target::scalar;
}

FmaPeak::FmaPeak(Executor& executor, Target target, int threads)
    : executor_(executor), kernel_(loops_for(target).fma), threads_(threads) {
  rounds_ = 20000;
  double best = 1e9;  // seconds; the first burst also wakes the core's wide units
  for (int i = 0; i < 5; ++i) {
    const double begin = wall_seconds();
    run();
    best = std::min(best, wall_seconds() - begin);
  }
  rounds_ = std::max<int64_t>(1000, static_cast<int64_t>(20000 * kBurst / best));
}

void FmaPeak::run() {
  executor_.run(threads_, threads_,
                [&](int64_t, int) { g_sink.store(kernel_(rounds_), std::memory_order_relaxed); });
}

double FmaPeak::flops() const { return kernel_(-1) * static_cast<double>(rounds_) * threads_; }

ReadPeak::ReadPeak(Executor& executor, Target target, int threads, int64_t memory_bytes)
    : executor_(executor),
      kernel_(loops_for(target).read),
      threads_(threads),
      bytes_(std::min<int64_t>(int64_t{512} << 20, memory_bytes / 8) / kChunk * kChunk) {
  bytes_ = std::max(bytes_, kChunk);
  buffer_ = allocate_pages(static_cast<size_t>(bytes_));
  if (!buffer_) throw std::bad_alloc();
  std::memset(buffer_.get(), 1, static_cast<size_t>(bytes_));
}

void ReadPeak::run() {
  executor_.run(bytes_ / kChunk, threads_, [&](int64_t i, int) {
    const auto* data =
        reinterpret_cast<const float*>(reinterpret_cast<const char*>(buffer_.get()) + i * kChunk);
    g_sink.store(kernel_(data, kChunk / 4), std::memory_order_relaxed);
  });
}

}  // namespace tilewise::tune
#endif  // HWY_ONCE
