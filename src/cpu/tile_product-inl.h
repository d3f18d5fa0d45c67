// The product that every CPU kernel is made of: C[m][lane] (+)= sum_k A(m, k) * B[k][lane].
//
// A is read element by element and broadcast, straight from the rows of the caller's tensor or of a tile; B
// and C are rows of whole vectors. Forward and backward are this one product: S^T = K Q^T, O^T += V^T P^T,
// dP^T = V dO^T, dQ^T += K^T dS^T with queries in the lanes, dV += P^T dO and dK += dS^T Q with the head dim
// in the lanes. Nothing is ever transposed but the packs of q and dO.
//
// An element of A and B is one fp32 number, or, where Product<Element> says so, a few shorter ones that stand
// for as many steps of k. B and C may also be rows of a 16-bit storage type (storage-inl.h), which are
// widened where they are loaded and rounded where they are stored, and need no alignment.
//
// Register tile: kPanelRows x kPanelVectors accumulators stay in registers over all of k. A panel of B (k
// rows of kPanelVectors vectors) is small enough for L1 and is met again by every row tile. Included once per
// instruction set, inside HWY_BEFORE_NAMESPACE.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Accumulators that fit: 32 registers hold 24 + 4 + 1, 16 hold 12 + 2 + 1. `kTallRows` is for one vector,
// where only rows can hide the latency of the multiply-add.
#if HWY_TARGET == HWY_SCALAR
constexpr int kPanelVectors = 4, kPanelRows = 2, kTallRows = 4;
#elif HWY_ARCH_X86 && !HWY_CAP_GE512
constexpr int kPanelVectors = 2, kPanelRows = 6, kTallRows = 12;
#else
constexpr int kPanelVectors = 4, kPanelRows = 6, kTallRows = 16;
#endif

// kStoreMax: also the maximum over m, per lane. kAccumulate adds the finished sum over k to C: long sums go
// in parts, which is more accurate than one running sum.
enum class Out { kStore, kStoreMax, kAccumulate };

// Cache lines that will be needed soon, asked for a few at a time while a product runs: rows at the stride of
// [row, head, dim] are nothing that the hardware's prefetchers foresee.
class Ahead {
 public:
  // Slots [0, kOwn) hold what the next step of the caller needs, the others what a later one does.
  static constexpr int kOwn = 3, kSlots = 7;

  // `count` rows of `bytes`; forgets what the slot still held.
  void set(int slot, const void* at, int64_t stride, int64_t bytes, int64_t count) {
    rows_[slot] = {static_cast<const char*>(at), stride, (bytes + 63) / 64 * 64, 0, count};
  }
  // Spreads the first kOwn slots over the next `own` steps and the others over `all`.
  void spread(int64_t own, int64_t all) {
    const int64_t a_step = (lines(0, kOwn) + own) / (own + 1) + (lines(kOwn, kSlots) + all) / (all + 1);
    lines_a_step_ = a_step < kMostLines ? static_cast<int>(a_step) : kMostLines;
  }
  void step() {
    for (int i = 0; i < lines_a_step_; ++i) {
      Rows* r = rows_;
      while (r->count == 0) {
        if (++r < rows_ + kSlots) continue;
        lines_a_step_ = 0;
        return;
      }
      __builtin_prefetch(r->at + r->offset, 0, 2);  // into L2: L1 is full
      r->offset += 64;
      if (r->offset < r->bytes) continue;
      r->offset = 0;
      r->at += r->stride;
      --r->count;
    }
  }

 private:
  static constexpr int kMostLines = 16;
  int64_t lines(int first, int last) const {
    int64_t sum = 0;
    for (int slot = first; slot < last; ++slot) sum += rows_[slot].count * rows_[slot].bytes / 64;
    return sum;
  }
  struct Rows {
    const char* at;
    int64_t stride, bytes, offset, count;
  };
  Rows rows_[kSlots] = {};
  int lines_a_step_ = 0;
};

// acc += a * b. g++ 12 prefers the form that overwrites `a`, and copies `a` for every further use: up to one
// move a product. Naming the form takes all of them out.
HWY_INLINE void MulAddTo(V& acc, V a, V b) {
#if HWY_ARCH_X86 && defined(__GNUC__) && !defined(__clang__) && HWY_TARGET != HWY_SCALAR
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc.raw) : "v"(a.raw), "v"(b.raw));
#else
  acc = hn::MulAdd(a, b, acc);
#endif
}

// acc += a * b over all that an element holds: what another dot product instruction specialises.
template <class Element>
struct Product;
template <>
struct Product<float> {
  static HWY_INLINE void add(V& acc, V a, V b) { MulAddTo(acc, a, b); }
};

#if HWY_ARCH_X86 && HWY_CAP_GE512
// C[kRows] = A(m, k) B of kWhole vectors (none or one) and half a vector, of which a processor that runs
// whole ones in halves makes two in the time of one. The other lanes of C become 0.
template <int kRows, int kWhole>
HWY_INLINE void HalfTileProduct(const float* HWY_RESTRICT a, int64_t as, const float* HWY_RESTRICT b,
                                int64_t bs, int nk, float* HWY_RESTRICT c, int64_t cs) {
  V whole[kRows];
  __m256 half[kRows];
  __asm__("" : "+r"(b));
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    whole[r] = hn::Zero(D());
    half[r] = _mm256_setzero_ps();
  }
#pragma GCC unroll 4
  for (int k = 0; k < nk; ++k, ++a, b += bs) {
    const __m512 row = kWhole ? _mm512_load_ps(b) : _mm512_setzero_ps();
    const __m256 half_row = _mm256_load_ps(b + kWhole * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kWhole) {
        const V element = hn::Set(D(), a[r * as]);
        MulAddTo(whole[r], element, V{row});
        __asm__("vfmadd231ps %2, %1, %0"
                : "+v"(half[r])
                : "v"(_mm512_castps512_ps256(element.raw)), "v"(half_row));
      } else {
        __asm__("vfmadd231ps %2, %1, %0"
                : "+v"(half[r])
                : "v"(_mm256_broadcast_ss(a + r * as)), "v"(half_row));
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kWhole) hn::Store(whole[r], D(), c + r * cs);
    _mm512_store_ps(c + r * cs + kWhole * kLanes, _mm512_zextps256_ps512(half[r]));
  }
}

template <int kWhole>
HWY_NOINLINE void HalfPanel(int m, int nk, const float* a, int64_t as, const float* b, int64_t bs, float* c,
                            int64_t cs) {
  constexpr int kRows = kWhole ? 8 : 16;
  int i = 0;
  for (; i + kRows <= m; i += kRows)
    HalfTileProduct<kRows, kWhole>(a + i * as, as, b, bs, nk, c + i * cs, cs);
  if constexpr (kRows > 8)
    for (; i + 8 <= m; i += 8) HalfTileProduct<8, kWhole>(a + i * as, as, b, bs, nk, c + i * cs, cs);
  for (; i + 4 <= m; i += 4) HalfTileProduct<4, kWhole>(a + i * as, as, b, bs, nk, c + i * cs, cs);
  for (; i + 2 <= m; i += 2) HalfTileProduct<2, kWhole>(a + i * as, as, b, bs, nk, c + i * cs, cs);
  for (; i < m; ++i) HalfTileProduct<1, kWhole>(a + i * as, as, b, bs, nk, c + i * cs, cs);
}
#endif

// A(m, k) = a[m * as + k] where kUnitK, else a[m + k * as].
template <int kRows, int kVectors, bool kUnitK, Out kOut, class Element, class Row, class Result>
HWY_INLINE void TileProduct(const Element* HWY_RESTRICT a, int64_t as, const Row* HWY_RESTRICT b, int64_t bs,
                            int nk, Result* HWY_RESTRICT c, int64_t cs, V* HWY_RESTRICT top) {
  const D d;
  const hn::ScalableTag<Element> de;
  V acc[kRows][kVectors];
#if defined(__GNUC__)
  __asm__("" : "+r"(b));  // else g++ keeps the first rows of B in registers from tile to tile, and spills
#endif
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
  }
#pragma GCC unroll 4
  for (int k = 0; k < nk; ++k) {
    hn::Vec<decltype(de)> row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (std::is_same_v<Row, Element>)
        row[v] = hn::Load(de, b + v * kLanes);
      else
        row[v] = LoadWide(de, b + v * kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto element = hn::Set(de, kUnitK ? a[r * as] : a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Product<Element>::add(acc[r][v], element, row[v]);
    }
    a += kUnitK ? 1 : as;
    b += bs;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Result* at = c + r * cs + v * kLanes;
      if constexpr (kOut == Out::kAccumulate) acc[r][v] = hn::Add(acc[r][v], hn::Load(d, at));
      if constexpr (std::is_same_v<Result, float>)
        hn::Store(acc[r][v], d, at);
      else
        StoreNarrow(acc[r][v], at);
      if constexpr (kOut == Out::kStoreMax) top[v] = hn::Max(top[v], acc[r][v]);
    }
  }
}

// All m rows of one panel; the rows that no full tile holds go through smaller tiles: one vector needs many
// rows to hide the latency.
template <int kVectors, bool kUnitK, Out kOut, class Element, class Row, class Result>
HWY_NOINLINE void Panel(int m, int nk, const Element* a, int64_t as, const Row* b, int64_t bs, Result* c,
                        int64_t cs, float* top, Ahead* ahead) {
  const D d;
  constexpr int kRows = kVectors == 1 ? kTallRows : kVectors == kPanelVectors ? kPanelRows : 8;
  const int64_t next = kUnitK ? as : 1;
  V maximum[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) maximum[v] = hn::Set(d, kNegativeInfinity);
  // Rows that no whole tiles fill make the last tiles one row shorter, where there are enough: 64 are 9 tiles
  // of 6 and 2 of 5, not 10 and one of 4, which more loads a multiply-add slow down.
  constexpr int kShort = kRows == 6 ? kRows - 1 : 0;
  const int missing = kShort ? (kRows - m % kRows) % kRows : 0;
  const int whole = missing * kShort <= m ? m - missing * kShort : m;
  int i = 0;
  for (; i + kRows <= whole; i += kRows) {
    if (ahead) ahead->step();
    TileProduct<kRows, kVectors, kUnitK, kOut>(a + i * next, as, b, bs, nk, c + i * cs, cs, maximum);
  }
  if constexpr (kShort > 0) {
    for (; i + kShort <= m; i += kShort) {
      if (ahead) ahead->step();
      TileProduct<kShort, kVectors, kUnitK, kOut>(a + i * next, as, b, bs, nk, c + i * cs, cs, maximum);
    }
  }
  if constexpr (kRows > 12) {
    if (i + 12 <= m) {
      TileProduct<12, kVectors, kUnitK, kOut>(a + i * next, as, b, bs, nk, c + i * cs, cs, maximum);
      i += 12;
    }
  }
  if constexpr (kRows > 8) {
    if (i + 8 <= m) {
      TileProduct<8, kVectors, kUnitK, kOut>(a + i * next, as, b, bs, nk, c + i * cs, cs, maximum);
      i += 8;
    }
  }
  if constexpr (kRows > 4) {
    for (; i + 4 <= m; i += 4)
      TileProduct<4, kVectors, kUnitK, kOut>(a + i * next, as, b, bs, nk, c + i * cs, cs, maximum);
  }
  if constexpr (kRows > 2) {
    for (; i + 2 <= m; i += 2)
      TileProduct<2, kVectors, kUnitK, kOut>(a + i * next, as, b, bs, nk, c + i * cs, cs, maximum);
  }
  for (; i < m; ++i)
    TileProduct<1, kVectors, kUnitK, kOut>(a + i * next, as, b, bs, nk, c + i * cs, cs, maximum);
  if constexpr (kOut == Out::kStoreMax) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::Store(maximum[v], d, top + v * kLanes);
  }
}

// C of `width` lanes, a multiple of kLanes. B, C and top are aligned to a vector, bs and cs multiples of
// kLanes, but where B and C are of 16 bits.
template <bool kUnitK, Out kOut, class Element, class Row, class Result>
HWY_INLINE void Panels(int m, int nk, const Element* a, int64_t as, const Row* b, int64_t bs, Result* c,
                       int64_t cs, int width, float* top = nullptr, Ahead* ahead = nullptr) {
  int x = 0;
  for (; x + kPanelVectors * kLanes <= width; x += kPanelVectors * kLanes)
    Panel<kPanelVectors, kUnitK, kOut>(m, nk, a, as, b + x, bs, c + x, cs, top + x, ahead);
  if constexpr (kPanelVectors > 2) {
    for (; x + 2 * kLanes <= width; x += 2 * kLanes)
      Panel<2, kUnitK, kOut>(m, nk, a, as, b + x, bs, c + x, cs, top + x, ahead);
  }
  for (; x < width; x += kLanes) Panel<1, kUnitK, kOut>(m, nk, a, as, b + x, bs, c + x, cs, top + x, ahead);
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
