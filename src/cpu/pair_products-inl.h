// The forward's products by dots of bf16 pairs (AVX512-BF16): an element is two numbers of bf16, the first in
// its lower half, and one instruction adds both of their products to fp32.
//
//   S^T = K Q^T        pairs of dims: K's as they lie, Q^T packed in pairs
//   O^T += V^T P^T     pairs of keys (2 i, 2 i + 1) from the sequence's first on: V interleaved once for all
//                      blocks of a task, P^T rounded to bf16 after its weights were added up
//
// What an odd head dim or a run of keys leaves open in a pair is zero on both sides. The instruction takes
// denormal numbers for zeros and flushes them.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

using Pair = uint32_t;
using DPair = hn::ScalableTag<Pair>;
using VPair = hn::Vec<DPair>;

// The instructions are named in assembly: nothing else may be compiled for a processor that has them.
template <>
struct Product<Pair> {
  static HWY_INLINE void add(V& acc, VPair a, VPair b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc.raw) : "v"(a.raw), "v"(b.raw));
  }
};

// Two vectors of fp32, rounded to nearest even, one after the other. -0 stays.
HWY_INLINE VPair RoundToHalves(V lower, V upper) {
  VPair halves;
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves.raw) : "v"(upper.raw), "v"(lower.raw));
  return halves;
}

// The same as the lower and upper halves of pairs.
HWY_INLINE VPair RoundToPairs(V lower, V upper) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return VPair{_mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), RoundToHalves(lower, upper).raw)};
}

// Bits of `n` bf16 numbers, zeros up to a multiple of 16 pairs; an odd last one stands beside a zero.
HWY_INLINE void CopyRow(Pair* HWY_RESTRICT to, const uint16_t* HWY_RESTRICT from, int64_t n) {
  const DPair d;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) hn::Store(VPair{_mm512_loadu_si512(from + i)}, d, to + i / 2);
  if (i == n) return;
  const auto rest = static_cast<__mmask32>((uint32_t{1} << (n - i)) - 1);
  hn::Store(VPair{_mm512_maskz_loadu_epi16(rest, from + i)}, d, to + i / 2);
}

// to[c] = (even[c], odd[c]), zeros where a row is null.
HWY_INLINE void InterleaveRows(Pair* HWY_RESTRICT to, const uint16_t* even, const uint16_t* odd, int64_t n) {
  const DPair d;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto live = static_cast<__mmask16>(n - i >= kLanes ? 0xffff : (1u << (n - i)) - 1);
    const auto half = [&](const uint16_t* from) HWY_ATTR {
      return from ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(live, from + i)) : _mm512_setzero_si512();
    };
    const __m512i upper = _mm512_slli_epi32(half(odd), 16);
    hn::Store(VPair{_mm512_or_si512(half(even), upper)}, d, to + i);
  }
}

// Calls visit(j, row) for keys [j0, j0 + n) of a sequence, wherever they lie.
template <class Visit>
HWY_INLINE void VisitKeys(const ForwardParams& p, const RowTensor& t, const Sequence& s, int64_t b,
                          int64_t head, int64_t j0, int n, const Visit& visit) {
  for (int64_t j = j0; j < j0 + n;) {
    const KeyRun run = key_run(p, s, b, j, j0 + n - j);
    const uint16_t* row = static_cast<const uint16_t*>(t.data) + t.at(run.block, run.row, head);
    for (const int64_t end = j + run.count; j < end; ++j, row += t.row_stride) visit(j, row);
  }
}

// P^T of n rows from key j0 on, in place: row i becomes the i-th pair of keys. A key beside them that is none
// of theirs weighs -0, as one that is hidden does (ExponentialsMarked).
template <int kVectors>
HWY_NOINLINE void PairColumns(float* s, int64_t ld, int64_t j0, int n) {
  const D d;
  const DPair dp;
  auto* to = reinterpret_cast<Pair*>(s);
  const auto pair = [&](int row, bool lower, bool upper) HWY_ATTR {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const float* at = s + row * ld + v * kLanes;
      const V first = hn::Load(d, at), none = hn::Set(d, -0.0f);
      const V second = lower && upper ? hn::Load(d, at + ld) : first;
      hn::Store(RoundToPairs(lower ? first : none, upper ? second : none), dp, to + v * kLanes);
    }
    to += ld;
  };
  int row = 0;
  if (j0 & 1) pair(row++, false, true);
  for (; row + 2 <= n; row += 2) pair(row, true, true);
  if (row < n) pair(row, true, false);
}

// acc += the products of pairs of weights and values, without what weighs -0, whose value is not looked at.
HWY_INLINE void AddSeenPairs(V& acc, VPair weight, VPair value) {
  const __m512i hidden = _mm512_set1_epi16(static_cast<int16_t>(0x8000)), one = _mm512_set1_epi16(0x3f80),
                infinity = _mm512_set1_epi16(0x7f80), magnitude = _mm512_set1_epi16(0x7fff);
  const __mmask32 seen = _mm512_cmpneq_epi16_mask(weight.raw, hidden);
  // A weight that underflowed was no zero: its product with an infinity is one.
  const __mmask32 infinite =
      _mm512_mask_cmpeq_epi16_mask(_mm512_cmpeq_epi16_mask(weight.raw, _mm512_setzero_si512()),
                                   _mm512_and_si512(value.raw, magnitude), infinity);
  Product<Pair>::add(acc, VPair{_mm512_maskz_mov_epi16(seen, value.raw)},
                     VPair{_mm512_mask_mov_epi16(weight.raw, infinite, one)});
}

// SeenProduct of pairs.
inline HWY_NOINLINE void SeenPairs(int dim, int n, const Pair* HWY_RESTRICT v, int64_t v_stride,
                                   const Pair* HWY_RESTRICT p, int64_t ld, float* HWY_RESTRICT o, int width) {
  const D d;
  const DPair dp;
  for (int x = 0; x < width; x += kLanes) {
    for (int c = 0; c < dim; ++c) {
      V acc = hn::Zero(d);
      for (int j = 0; j < n; ++j)
        AddSeenPairs(acc, hn::Load(dp, p + j * ld + x), hn::Set(dp, v[j * v_stride + c]));
      float* at = o + c * ld + x;
      hn::Store(hn::Add(acc, hn::Load(d, at)), d, at);
    }
  }
}

// NaN and infinities times 0 are NaN.
inline Pair ZeroTimes(Pair pair) {
  const auto half = [](uint32_t bits) -> uint32_t { return (bits & 0x7f80u) == 0x7f80u ? 0x7fc0u : 0u; };
  return half(pair & 0xffffu) | half(pair >> 16) << 16;
}

// A row of q, whole vectors, by the sign of the scale.
inline void SignRow(Pair* HWY_RESTRICT row, int64_t n, float sign) {
  const DPair d;
  if (sign < 0.0f) {
    for (int64_t i = 0; i < n; i += kLanes)
      hn::Store(hn::Xor(hn::Load(d, row + i), hn::Set(d, 0x80008000u)), d, row + i);
  } else if (sign == 0.0f) {
    for (int64_t i = 0; i < n; ++i) row[i] = ZeroTimes(row[i]);
  }
}

// to[pair][row] of `width` rows, `ld` pairs each: both whole vectors.
inline void TransposePairs(const float* rows, int64_t ld, int width, float* to) {
  for (int r = 0; r < width; r += kLanes) {
    for (int64_t c = 0; c < ld; c += kLanes)
      Transpose16<false, false>(rows + r * ld + c, ld, to + c * width + r, width, hn::Zero(D()), kLanes);
  }
}

struct PairProducts {
  using Element = Pair;
  static constexpr int kUnit = 2;
  static constexpr bool kRounded = true;

  static int64_t pitch(int64_t dim) { return multiple_of(kLanes, (dim + 1) / 2); }

  static void Pack(const ForwardBlock& block, const ForwardParams& p, float factor, const ForwardScratch& w,
                   const ForwardSizes&) {
    const Lanes& lanes = *block.lanes;
    const int64_t dim = p.head_dim, ld = pitch(dim);
    auto* rows = reinterpret_cast<Pair*>(w.rows);
    for (int r = 0; r < block.width; ++r) {
      Pair* row = rows + r * ld;
      if (r >= lanes.count || lanes.sees_nothing(r)) {
        std::fill_n(row, ld, Pair{0});
        continue;
      }
      CopyRow(row, static_cast<const uint16_t*>(p.q.data) + row_offset(p.q, lanes, r), dim);
      SignRow(row, ld, factor);
    }
    TransposePairs(w.rows, ld, block.width, block.q_t);
  }

  static const Pair* Keys(const ForwardParams& p, const Sequence& s, int64_t b, int64_t head, int64_t j0,
                          int n, const ForwardScratch& w, const ForwardSizes&, bool, int64_t* stride) {
    auto* tile = reinterpret_cast<Pair*>(w.k_tile);
    const int64_t dim = p.head_dim, ld = *stride = pitch(dim);
    VisitKeys(p, p.k, s, b, head, j0, n,
              [&](int64_t j, const uint16_t* row) HWY_ATTR { CopyRow(tile + (j - j0) * ld, row, dim); });
    return tile;
  }
  static const Pair* Values(const ForwardParams& p, const Sequence& s, int64_t b, int64_t head, int64_t j0,
                            int n, const ForwardScratch& w, const ForwardSizes& sizes, bool,
                            int64_t* stride) {
    auto* tile = reinterpret_cast<Pair*>(w.v_tile);
    const int64_t dim = p.head_dim_v, ld = *stride = sizes.pitch_v;
    const uint16_t* even = nullptr;
    VisitKeys(p, p.v, s, b, head, j0, n, [&](int64_t j, const uint16_t* row) HWY_ATTR {
      const bool odd = (j & 1) != 0;
      if (odd || j + 1 == j0 + n)
        InterleaveRows(tile + (j / 2 - j0 / 2) * ld, odd ? even : row, odd ? row : nullptr, dim);
      even = row;
    });
    return tile;
  }

  static void Weights(float* s, int ld, int64_t j0, int n) {
    int x = 0;
    for (; x + 4 * kLanes <= ld; x += 4 * kLanes) PairColumns<4>(s + x, ld, j0, n);
    for (; x < ld; x += kLanes) PairColumns<1>(s + x, ld, j0, n);
  }
  static void Seen(int dim, int n, const Pair* v, int64_t v_stride, const Pair* p, int64_t ld, float* o,
                   int width) {
    SeenPairs(dim, n, v, v_stride, p, ld, o, width);
  }
};

inline Status PairForward(const Kernel&, const ForwardParams& p, const Schedule& schedule,
                          const Launch& launch) {
  return ForwardRun<PairProducts>(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
