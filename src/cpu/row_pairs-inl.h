// The products of form rows by dots of bf16 pairs (pair_products-inl.h). Weights are rounded to bf16 after
// they were added up.
//
//   scores    pairs of dims. One, two or four rows of q share a vector, 16, 8 or 4 pairs of each, beside as
//   many
//             of a key in all its parts: with four rows sums go across four lanes only
//   outputs   pairs of keys (2 i, 2 i + 1): their rows are interleaved on the way to the products

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

constexpr int kPairRows = 4;           // of q that share a vector, at most
constexpr int kPairKeys = 8;           // sums of theirs under way: more than a dot takes clocks
constexpr int kPairStep = 2 * kLanes;  // elements of a row: a vector

// 32 columns of two keys: of low() 0 to 3, 8 to 11, ..., of high() the others.
struct TwoRows {
  HWY_INLINE TwoRows(const char* even, const char* odd)
      : a(_mm512_loadu_si512(even)), b(_mm512_loadu_si512(odd)) {}
  HWY_INLINE VPair low() const { return VPair{_mm512_unpacklo_epi16(a, b)}; }
  HWY_INLINE VPair high() const { return VPair{_mm512_unpackhi_epi16(a, b)}; }
  __m512i a, b;
};

// Of four vectors the sums of every four neighbouring lanes: lane 4 i + x is of x's i-th four.
HWY_INLINE V SumsOfFours(V a, V b, V c, V e) {
  const D d;
  const V ac = hn::Add(hn::InterleaveLower(d, a, c), hn::InterleaveUpper(d, a, c));
  const V be = hn::Add(hn::InterleaveLower(d, b, e), hn::InterleaveUpper(d, b, e));
  return hn::Add(hn::InterleaveLower(d, ac, be), hn::InterleaveUpper(d, ac, be));
}

// Rows of q that share a vector, where a key head has `count`.
inline int rows_sharing(int count) { return count <= 2 ? count : kPairRows; }

// What kRows rows meet of a key: 16 / kRows pairs, in all parts of a vector.
template <int kRows>
HWY_INLINE VPair RepeatedPairs(const char* at) {
  if constexpr (kRows == 1) return VPair{_mm512_loadu_si512(at)};
  if constexpr (kRows == 2)
    return VPair{_mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)))};
  return VPair{_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)))};
}

// The four scores of each row.
template <int kRows>
HWY_INLINE void StoreScores(V a, V b, V c, V e, float* HWY_RESTRICT s, int64_t pitch) {
  __m512 sums = SumsOfFours(a, b, c, e).raw;
  if constexpr (kRows == 1) sums = _mm512_add_ps(sums, _mm512_shuffle_f32x4(sums, sums, 0x4e));
  if constexpr (kRows <= 2) sums = _mm512_add_ps(sums, _mm512_shuffle_f32x4(sums, sums, 0xb1));
  _mm_storeu_ps(s, _mm512_castps512_ps128(sums));
  if constexpr (kRows == 2) _mm_storeu_ps(s + pitch, _mm512_extractf32x4_ps(sums, 2));
  if constexpr (kRows == 4) {
    _mm_storeu_ps(s + pitch, _mm512_extractf32x4_ps(sums, 1));
    _mm_storeu_ps(s + 2 * pitch, _mm512_extractf32x4_ps(sums, 2));
    _mm_storeu_ps(s + 3 * pitch, _mm512_extractf32x4_ps(sums, 3));
  }
}

// s[r][j] for kRows rows, of which q has 16 / kRows pairs in turn, and n keys; up to 7 scores behind the n-th
// are written too.
template <int kRows>
HWY_NOINLINE void PairScores(const Pair* HWY_RESTRICT q, const char* const* k, int64_t from_k, int dim, int n,
                             float* HWY_RESTRICT s, int64_t s_pitch, Upcoming upcoming) {
  const D d;
  const DPair dp;
  constexpr int kPart = 64 / kRows;  // bytes
  for (int j = 0; j < n; j += kPairKeys) {
    const char* at[kPairKeys];
#pragma GCC unroll 8
    for (int i = 0; i < kPairKeys; ++i) at[i] = k[std::min(j + i, n - 1)] + from_k;
    V acc[kPairKeys];
#pragma GCC unroll 8
    for (int i = 0; i < kPairKeys; ++i) acc[i] = hn::Zero(d);
    for (int c = 0; c < dim; c += kPairStep) {
#pragma GCC unroll 4
      for (int part = 0; part < kRows; ++part) {
        upcoming.step();
        const VPair rows = hn::Load(dp, q + c * kRows / 2 + part * kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < kPairKeys; ++i)
          Product<Pair>::add(acc[i], rows, RepeatedPairs<kRows>(at[i] + 2 * c + part * kPart));
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < kPairKeys; i += 4)
      StoreScores<kRows>(acc[i], acc[i + 1], acc[i + 2], acc[i + 3], s + j + i, s_pitch);
  }
}

// Keys [from, to) of a tile in pairs; what is beside them in a pair weighs nothing and is one of them.
struct KeyPairs {
  const char* const* v;
  int64_t from_v;
  int from, to;

  HWY_INLINE const char* even(int pair) const { return v[std::max(2 * pair, from)] + from_v; }
  HWY_INLINE const char* odd(int pair) const { return v[std::min(2 * pair + 1, to - 1)] + from_v; }
};

// o_r += sum_pair p[r][pair] v_pair for kRows rows and kSteps steps of columns from c on.
template <int kRows, int kSteps>
HWY_INLINE void PairSum(const Pair* HWY_RESTRICT p, int64_t p_pitch, const KeyPairs& keys, int c,
                        float* HWY_RESTRICT o, int64_t o_pitch, Upcoming& upcoming) {
  const D d;
  const DPair dp;
  V acc[kRows][2 * kSteps];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kSteps; ++i) acc[r][i] = hn::Zero(d);
  }
  for (int pair = keys.from / 2, end = (keys.to + 1) / 2; pair < end; ++pair) {
    const char *even = keys.even(pair) + 2 * c, *odd = keys.odd(pair) + 2 * c;
    VPair value[2 * kSteps];
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i) {
      const TwoRows two(even + 2 * i * kPairStep, odd + 2 * i * kPairStep);
      value[2 * i] = two.low();
      value[2 * i + 1] = two.high();
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      upcoming.step();
      const VPair weight = hn::Set(dp, p[r * p_pitch + pair]);
#pragma GCC unroll 8
      for (int i = 0; i < 2 * kSteps; ++i) Product<Pair>::add(acc[r][i], value[i], weight);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kSteps; ++i) {
      float* at = o + r * o_pitch + c + i * kLanes;
      hn::Store(hn::Add(acc[r][i], hn::Load(d, at)), d, at);
    }
  }
}

// Few rows take more columns at a time: each dot waits for the one before it.
constexpr int pair_steps(int rows) { return rows <= 2 ? 4 : 2; }

template <int kRows>
HWY_NOINLINE void PairOutput(const Pair* p, int64_t p_pitch, const KeyPairs& keys, int dim, float* o,
                             int64_t o_pitch, Upcoming upcoming) {
  constexpr int kSteps = pair_steps(kRows), kColumns = kSteps * kPairStep;
  int c = 0;
  for (; c + kColumns <= dim; c += kColumns)
    PairSum<kRows, kSteps>(p, p_pitch, keys, c, o, o_pitch, upcoming);
  for (; c < dim; c += kPairStep) PairSum<kRows, 1>(p, p_pitch, keys, c, o, o_pitch, upcoming);
}

// PairSum of one row over the keys that it sees, whose weight is not -0: the same bits without 0 * NaN.
inline HWY_NOINLINE void SeenPairOutput(const Pair* p, const KeyPairs& keys, int dim, float* o) {
  const D d;
  const DPair dp;
  for (int c = 0; c < dim; c += kPairStep) {
    V low = hn::Zero(d), high = low;
    for (int pair = keys.from / 2, end = (keys.to + 1) / 2; pair < end; ++pair) {
      const TwoRows two(keys.even(pair) + 2 * c, keys.odd(pair) + 2 * c);
      const VPair weight = hn::Set(dp, p[pair]);
      AddSeenPairs(low, weight, two.low());
      AddSeenPairs(high, weight, two.high());
    }
    hn::Store(hn::Add(low, hn::Load(d, o + c)), d, o + c);
    hn::Store(hn::Add(high, hn::Load(d, o + c + kLanes)), d, o + c + kLanes);
  }
}

// One of kRows rows that share vectors, each 16 / kRows pairs in turn.
template <int kRows>
HWY_INLINE void Interleave(Pair* HWY_RESTRICT to, const Pair* HWY_RESTRICT row, int64_t n) {
  constexpr int kPart = kLanes / kRows;
  for (int64_t c = 0; c < n; c += kPart) std::memcpy(to + c * kRows, row + c, kPart * sizeof(Pair));
}

// Products of RowForwardRun.
class RowPairs {
 public:
  static constexpr int kTogether = kPairRows;
  static constexpr bool kRounded = true;

  RowPairs(const ForwardParams& p, const RowForwardSizes& sizes)
      : p_(p),
        sizes_(sizes),
        dim_k_(static_cast<int>(multiple_of(kPairStep, p.head_dim))),
        dim_v_(static_cast<int>(multiple_of(kPairStep, p.head_dim_v))) {}

  void load_queries(const RowTask& t, int64_t h, float sign, const RowForwardScratch& w, float* q) const {
    auto* to = reinterpret_cast<Pair*>(q);
    auto* row = reinterpret_cast<Pair*>(w.k_tile);
    const int64_t n = dim_k_ / 2, sharing = rows_sharing(t.count);
    for (int64_t i = 0; i < multiple_of(sharing, t.count); ++i) {
      const RowOfTask& of = t.rows[h * t.count + std::min<int64_t>(i, t.count - 1)];
      if (i >= t.count || of.keys.hi <= of.keys.lo) {
        std::fill_n(row, n, Pair{0});
      } else {
        const int64_t at = p_.q.at(t.b, t.s.q_begin + of.query, of.head);
        CopyRow(row, static_cast<const uint16_t*>(p_.q.data) + at, p_.head_dim);
        SignRow(row, n, sign);
      }
      Pair* first = to + i / sharing * sharing * n + i % sharing * (kLanes / sharing);
      switch (sharing) {
        case 1:
          Interleave<1>(first, row, n);
          break;
        case 2:
          Interleave<2>(first, row, n);
          break;
        default:
          Interleave<kPairRows>(first, row, n);
      }
    }
  }

  int64_t score_steps(int count) const {
    return sizes_.tile_n / kPairKeys * (dim_k_ / kPairStep) * rows_sharing(count);
  }
  int64_t output_steps(int count) const {
    const int rows = std::min(count, kSharing), columns = pair_steps(rows) * kPairStep;
    return sizes_.tile_n / 2 * (dim_v_ / columns + dim_v_ % columns / kPairStep) * rows;
  }

  void scores(const KeyPointers& tile, int64_t h, const float* q, int r0, int count, int of_head,
              const RowForwardScratch& w, const Upcoming& upcoming) const {
    const char* copied[kMaxRowKeys];
    const TileRows k = rows_of(tile, tile.k, h, p_.k, p_.head_dim, dim_k_, w.k_tile, copied);
    const int n = tile.to - tile.from;
    float* s = w.s + tile.from;
    const auto* pairs = reinterpret_cast<const Pair*>(q);
    const auto run = [&](auto sharing, int r) {
      PairScores<sharing.value>(pairs + (r0 + r) * (dim_k_ / 2), k.rows + tile.from, k.offset, dim_k_, n,
                                s + r * sizes_.pitch_s, sizes_.pitch_s, r == 0 ? upcoming : Upcoming());
    };
    if (of_head == 1) return run(std::integral_constant<int, 1>(), 0);
    if (of_head == 2) return run(std::integral_constant<int, 2>(), 0);
    for (int r = 0; r < count; r += kPairRows) run(std::integral_constant<int, kPairRows>(), r);
  }

  void outputs(const KeyPointers& tile, int64_t h, float* s, int count, float* o, bool exact,
               const RowForwardScratch& w, const Upcoming& upcoming) const {
    const char* copied[kMaxRowKeys];
    const TileRows v = rows_of(tile, tile.v, h, p_.v, p_.head_dim_v, dim_v_, w.v_tile, copied);
    const KeyPairs keys{v.rows, v.offset, tile.from, tile.to};
    const D d;
    const DPair dp;
    auto* p = reinterpret_cast<Pair*>(s);
    for (int r = 0; r < count; ++r) {
      float* row = s + r * sizes_.pitch_s;
      for (int j = 0; j < tile.to; j += 2 * kLanes)
        hn::Store(RoundToHalves(hn::Load(d, row + j), hn::Load(d, row + j + kLanes)), dp,
                  p + r * sizes_.pitch_s + j / 2);
    }
    if (exact) return SeenPairOutput(p, keys, dim_v_, o);
    ForSharingRows(count, [&](auto sharing, int r) {
      PairOutput<sharing.value>(p + r * sizes_.pitch_s, sizes_.pitch_s, keys, dim_v_, o + r * sizes_.pitch_v,
                                sizes_.pitch_v, r == 0 ? upcoming : Upcoming());
    });
  }

  const float* in_order(const float* o, float* buffer) const {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int c = 0; c < dim_v_; c += kPairStep) {
      const __m512 low = _mm512_load_ps(o + c), high = _mm512_load_ps(o + c + kLanes);
      _mm512_store_ps(buffer + c, _mm512_permutex2var_ps(low, first, high));
      _mm512_store_ps(buffer + c + kLanes, _mm512_permutex2var_ps(low, second, high));
    }
    return buffer;
  }

 private:
  // As they are stored, or copied with zeros behind them up to whole steps.
  TileRows rows_of(const KeyPointers& tile, const char* const* from, int64_t h, const RowTensor& t,
                   int64_t dim, int64_t padded, float* buffer, const char** copied) const {
    const int64_t offset = 2 * h * t.head_stride;
    if (dim == padded) return {from, offset};
    for (int j = tile.from; j < tile.to; ++j) {
      char* to = reinterpret_cast<char*>(buffer) + 2 * j * padded;
      CopyRow(reinterpret_cast<Pair*>(to), reinterpret_cast<const uint16_t*>(from[j] + offset), dim);
      copied[j] = to;
    }
    return {copied, 0};
  }

  const ForwardParams& p_;
  const RowForwardSizes& sizes_;
  const int dim_k_, dim_v_;
};

inline Status PairRowForward(const Kernel&, const ForwardParams& p, const Schedule& schedule,
                             const Launch& launch) {
  return RowForwardRun<RowPairs>(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
