// The two products of the forward with keys in the lanes, for a tile of keys and a few rows of q that read
// each of its rows once: s[row][key] = q . k, and o[row] += sum_key p[row][key] v[key]. Keys are read through
// a pointer each, straight from the caller's storage, wherever they lie. A row's bits do not depend on which
// rows share its tile.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Rows of q in one register tile of the products, keys in that of the first. Sums and operands fit: 16 + 4 +
// 1 of 32 registers, 8 + 4 + 1 of 16.
#if HWY_ARCH_X86 && !HWY_CAP_GE512
constexpr int kSharing = 2;
#else
constexpr int kSharing = 4;
#endif
constexpr int kKeysAtOnce = 4;
constexpr int kStep = 2 * kLanes;  // elements of a row that are read together

// How a row of k or v is stored: element c of a step is lane c of low() and c - kLanes of high(), but for
// kDealt, where low() has the even elements and high() the odd ones: two operations for two vectors.
struct StoredFloats {
  static constexpr int kBytes = 4;
  static constexpr bool kDealt = false;
  static HWY_INLINE V low(const char* at) { return hn::LoadU(D(), reinterpret_cast<const float*>(at)); }
  static HWY_INLINE V high(const char* at) {
    return hn::LoadU(D(), reinterpret_cast<const float*>(at) + kLanes);
  }
};

#if HWY_TARGET != HWY_SCALAR
struct StoredHalves {
  static constexpr int kBytes = 2;
  static constexpr bool kDealt = false;
  static HWY_INLINE V low(const char* at) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(D(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(at)));
  }
  static HWY_INLINE V high(const char* at) { return low(at + kLanes * kBytes); }
};

struct StoredBytes {
  static constexpr int kBytes = 1;
  static constexpr bool kDealt = false;
  static HWY_INLINE V low(const char* at) {
    const hn::Rebind<int8_t, D> d8;
    const hn::RebindToSigned<D> d32;
    return hn::ConvertTo(D(), hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const int8_t*>(at))));
  }
  static HWY_INLINE V high(const char* at) { return low(at + kLanes); }
};

struct StoredBrains {
  static constexpr int kBytes = 2;
  static constexpr bool kDealt = true;
  static HWY_INLINE V low(const char* at) { return hn::BitCast(D(), hn::ShiftLeft<16>(both(at))); }
  static HWY_INLINE V high(const char* at) {
    const hn::RebindToUnsigned<D> d32;
    return hn::BitCast(D(), hn::And(both(at), hn::Set(d32, 0xffff0000u)));
  }

 private:
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> both(const char* at) {
    const hn::RebindToUnsigned<D> d32;
    const hn::Repartition<uint16_t, decltype(d32)> d16;
    return hn::BitCast(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(at)));
  }
};
#endif

// Rows that the next tile will read: their lines are asked for while this one is computed, a few at a time
// and in the order of memory. A core has few misses of its own under way; it is the prefetcher of L2 that
// keeps memory busy, and it follows ascending lines.
struct Upcoming {
  const char* const* rows = nullptr;
  int count = 0, bytes = 0;  // of each
  int lines_a_step = 0;
  int offset = 0;

  HWY_INLINE void step() {
    for (int i = 0; i < lines_a_step && count > 0; ++i) {
      __builtin_prefetch(*rows + offset, 0, 2);  // into L2
      offset += 64;
      if (offset < bytes) continue;
      offset = 0;
      ++rows;
      --count;
    }
  }
};

// The sums across four vectors, one after the other at `to`; the same order of additions for each.
HWY_INLINE void StoreFourSums(V a, V b, V c, V e, float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  const V all[4] = {a, b, c, e};
  for (int i = 0; i < 4; ++i) to[i] = hn::GetLane(all[i]);
#else
  const D d;
  const V ac = hn::Add(hn::InterleaveLower(d, a, c), hn::InterleaveUpper(d, a, c));
  const V be = hn::Add(hn::InterleaveLower(d, b, e), hn::InterleaveUpper(d, b, e));
  const V sums = hn::Add(hn::InterleaveLower(d, ac, be), hn::InterleaveUpper(d, ac, be));
  // Every 128-bit block holds parts of the four sums.
#if HWY_ARCH_X86 && HWY_CAP_GE512
  const hn::Half<D> half;
  const hn::Half<decltype(half)> quarter;
  const auto two = hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums));
  hn::StoreU(hn::Add(hn::LowerHalf(quarter, two), hn::UpperHalf(quarter, two)), quarter, to);
#elif HWY_ARCH_X86
  const hn::Half<D> half;
  hn::StoreU(hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)), half, to);
#else
  hn::StoreU(sums, d, to);
#endif
#endif
}

// s[r][j] = q_r . k_j for kRows rows at `q`, dim elements each (whole steps), and n keys, which begin from_k
// bytes behind their pointers; up to three scores behind the n-th are written too.
template <class Rows, int kRows>
HWY_NOINLINE void RowScores(const float* HWY_RESTRICT q, int64_t q_pitch, const char* const* k,
                            int64_t from_k, int dim, int n, float* HWY_RESTRICT s, int64_t s_pitch,
                            Upcoming upcoming) {
  const D d;
  for (int j = 0; j < n; j += kKeysAtOnce) {
    const char* at[kKeysAtOnce];
#pragma GCC unroll 4
    for (int i = 0; i < kKeysAtOnce; ++i) at[i] = k[std::min(j + i, n - 1)] + from_k;
    V acc[kRows][kKeysAtOnce];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kKeysAtOnce; ++i) acc[r][i] = hn::Zero(d);
    }
    for (int c = 0; c < dim; c += kStep) {
      const int offset = c * Rows::kBytes;
      upcoming.step();
      V key[kKeysAtOnce];
#pragma GCC unroll 4
      for (int i = 0; i < kKeysAtOnce; ++i) key[i] = Rows::low(at[i] + offset);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Load(d, q + r * q_pitch + c);
#pragma GCC unroll 4
        for (int i = 0; i < kKeysAtOnce; ++i) acc[r][i] = hn::MulAdd(x, key[i], acc[r][i]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < kKeysAtOnce; ++i) key[i] = Rows::high(at[i] + offset);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Load(d, q + r * q_pitch + c + kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < kKeysAtOnce; ++i) acc[r][i] = hn::MulAdd(x, key[i], acc[r][i]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
      StoreFourSums(acc[r][0], acc[r][1], acc[r][2], acc[r][3], s + r * s_pitch + j);
  }
}

// o_r += sum_j p[r][j] v_j for kRows rows and kSteps steps of the head dim.
template <class Rows, int kRows, int kSteps>
HWY_INLINE void RowSum(const float* HWY_RESTRICT p, int64_t p_pitch, const char* const* v, int64_t from_v,
                       int n, float* HWY_RESTRICT o, int64_t o_pitch, Upcoming& upcoming) {
  const D d;
  V acc[kRows][2 * kSteps];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kSteps; ++i) acc[r][i] = hn::Zero(d);
  }
  for (int j = 0; j < n; ++j) {
    upcoming.step();
    V value[2 * kSteps];
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i) {
      const char* at = v[j] + from_v + i * kStep * Rows::kBytes;
      value[2 * i] = Rows::low(at);
      value[2 * i + 1] = Rows::high(at);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, p[r * p_pitch + j]);
#pragma GCC unroll 8
      for (int i = 0; i < 2 * kSteps; ++i) acc[r][i] = hn::MulAdd(weight, value[i], acc[r][i]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kSteps; ++i) {
      float* at = o + r * o_pitch + i * kLanes;
      hn::Store(hn::Add(acc[r][i], hn::Load(d, at)), d, at);
    }
  }
}

template <class Rows, int kRows>
HWY_NOINLINE void RowOutput(const float* p, int64_t p_pitch, const char* const* v, int64_t from_v, int dim,
                            int n, float* o, int64_t o_pitch, Upcoming upcoming) {
  int c = 0;
  for (; c + 2 * kStep <= dim; c += 2 * kStep)
    RowSum<Rows, kRows, 2>(p, p_pitch, v, from_v + c * Rows::kBytes, n, o + c, o_pitch, upcoming);
  if (c < dim) RowSum<Rows, kRows, 1>(p, p_pitch, v, from_v + c * Rows::kBytes, n, o + c, o_pitch, upcoming);
}

// RowSum of one row over the keys that it sees, whose weight is not -0: the same bits without 0 * NaN.
template <class Rows>
HWY_NOINLINE void SeenRowOutput(const float* p, const char* const* v, int64_t from_v, int dim, int n,
                                float* o) {
  const D d;
  const V zero = hn::Zero(d), infinity = hn::Set(d, -kNegativeInfinity);
  for (int c = 0; c < dim; c += kStep) {
    V low = zero, high = zero;
    for (int j = 0; j < n; ++j) {
      if (p[j] == 0.0f && std::signbit(p[j])) continue;
      const V weight = hn::Set(d, p[j]);
      // A weight that underflowed was no zero: its product with an infinity is one.
      const V other = p[j] == 0.0f ? hn::Set(d, 1.0f) : weight;
      const char* at = v[j] + from_v + c * Rows::kBytes;
      const V a = Rows::low(at), b = Rows::high(at);
      low = hn::MulAdd(hn::IfThenElse(hn::Eq(hn::Abs(a), infinity), other, weight), a, low);
      high = hn::MulAdd(hn::IfThenElse(hn::Eq(hn::Abs(b), infinity), other, weight), b, high);
    }
    hn::Store(hn::Add(low, hn::Load(d, o + c)), d, o + c);
    hn::Store(hn::Add(high, hn::Load(d, o + c + kLanes)), d, o + c + kLanes);
  }
}

// Calls body(integral constant of kRows, first row) over `count` rows in register tiles.
template <typename F>
HWY_INLINE void ForSharingRows(int count, F&& body) {
  int r = 0;
  for (; r + kSharing <= count; r += kSharing) body(std::integral_constant<int, kSharing>(), r);
  switch (count - r) {
    case 3:
      if constexpr (kSharing > 3) body(std::integral_constant<int, 3>(), r);
      break;
    case 2:
      if constexpr (kSharing > 2) body(std::integral_constant<int, 2>(), r);
      break;
    case 1:
      body(std::integral_constant<int, 1>(), r);
      break;
    default:
      break;
  }
}

// Between a row in order and one as Rows deals it, whole steps.
inline void DealRow(const float* HWY_RESTRICT from, float* HWY_RESTRICT to, int64_t dim, bool back) {
  for (int64_t c = 0; c < dim; c += kStep) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const int64_t even = c + 2 * i, low = c + i;
      to[back ? even : low] = from[back ? low : even];
      to[back ? even + 1 : low + kLanes] = from[back ? low + kLanes : even + 1];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
