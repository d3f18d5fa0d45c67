// Products of the `small` kernels: over rows where they stand, fp32 or of 16 bits, that pack as little as
// they can.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Rows of whole vectors, wherever they stand.
template <class Storage>
struct Rows {
  const Storage* data = nullptr;
  int64_t stride = 0;
  const Storage* row(int64_t i) const { return data + i * stride; }
  Rows from(int64_t i) const { return {row(i), stride}; }
};

// The rows of all heads of a task, `step` elements from head to head.
template <class Storage>
struct TaskRows {
  Rows<Storage> first;
  int64_t step = 0;
  Rows<Storage> of(int h) const { return {first.data + h * step, first.stride}; }
};

// Pointers of a task's lanes, up to a multiple of four: the last row stands in for what is missing.
template <class Storage>
struct LanePointers {
  const Storage* at[kSmallRows];
  void close(int count) {
    for (int r = count; r % 4 != 0; ++r) at[r] = at[count - 1];
  }
};

// True where no element of `count` rows of n, whole vectors, is NaN or infinite: then its exponent is
// largest.
template <class Storage>
inline bool FiniteRows(const Storage* HWY_RESTRICT rows, int n, int count, int64_t stride) {
  const hn::Rebind<uint16_t, D> d;
  const auto magnitude = hn::Set(d, uint16_t{0x7fff});
  auto top = hn::Zero(d), top1 = top;
  for (int r = 0; r < count; ++r, rows += stride) {
    const auto* from = reinterpret_cast<const uint16_t*>(rows);
    int c = 0;
    for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
      top = hn::Max(top, hn::And(hn::LoadU(d, from + c), magnitude));
      top1 = hn::Max(top1, hn::And(hn::LoadU(d, from + c + kLanes), magnitude));
    }
    for (; c < n; c += kLanes) top = hn::Max(top, hn::And(hn::LoadU(d, from + c), magnitude));
  }
  constexpr uint16_t kInfinite = kTypeOf<Storage> == DType::bf16 ? 0x7f80 : 0x7c00;
  return hn::AllTrue(d, hn::Lt(hn::Max(top, top1), hn::Set(d, kInfinite)));
}
inline bool FiniteRows(const float* rows, int n, int count, int64_t stride) {
  return AllFinite(rows, n, count, stride);
}

inline bool aligned_rows(const float* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % (kLanes * sizeof(float)) == 0 && stride % kLanes == 0;
}

#if HWY_ARCH_X86 && HWY_CAP_GE512
// FourRowScores of rows of four vectors that share their keys: the rows stay in registers, and each vector of
// a key is loaded once.
template <class Row, class Key>
HWY_NOINLINE void FourHeldRowScores(const Row* const* q, const Key* k, int64_t k_stride, int n,
                                    float* HWY_RESTRICT s, int64_t ld) {
  const D d;
  V x[4][4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) x[r][c] = LoadWide(d, q[r] + c * kLanes);
  }
#pragma GCC unroll 2
  for (int j = 0; j < n; ++j, k += k_stride, s += ld) {
    V sum[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const V y = LoadWide(d, k + c * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        if (c == 0)
          sum[r] = hn::Mul(x[r][0], y);
        else
          MulAddTo(sum[r], x[r][c], y);
      }
    }
    StoreFourSums(sum[0], sum[1], sum[2], sum[3], s);
  }
}
#endif

// Storage types that have dots of their own specialise it, with FourRowScores as scores<kSameKeys>.
template <class Storage>
struct RowDots {
  static constexpr bool kOwn = false;
};

// s[j][r] = q_r . k_r[j], r < 4, j < n: each of the four rows has keys of its own, or, kSameKeys, all those
// of the first, which are then loaded once. `dim` is whole vectors.
template <bool kSameKeys, class Row, class Key>
HWY_NOINLINE void FourRowScores(const Row* const* q, const Key* const* k, int64_t k_stride, int dim, int n,
                                float* HWY_RESTRICT s, int64_t ld) {
  if constexpr (RowDots<Row>::kOwn)
    return RowDots<Row>::template scores<kSameKeys>(q, k, k_stride, dim, n, s, ld);
#if HWY_ARCH_X86 && HWY_CAP_GE512
  if (kSameKeys && dim == 4 * kLanes) return FourHeldRowScores(q, k[0], k_stride, n, s, ld);
#endif
  const D d;
  const Row *q0 = q[0], *q1 = q[1], *q2 = q[2], *q3 = q[3];
  const Key *k0 = k[0], *k1 = kSameKeys ? k0 : k[1], *k2 = kSameKeys ? k0 : k[2], *k3 = kSameKeys ? k0 : k[3];
  int j = 0;
  for (; j + 2 <= n; j += 2, s += 2 * ld) {
    V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (int c = 0; c < dim; c += kLanes) {
      const V x0 = LoadWide(d, q0 + c), x1 = LoadWide(d, q1 + c), x2 = LoadWide(d, q2 + c),
              x3 = LoadWide(d, q3 + c);
      const V y0 = LoadWide(d, k0 + c), z0 = LoadWide(d, k0 + k_stride + c);
      MulAddTo(a0, x0, y0);
      MulAddTo(a1, x1, kSameKeys ? y0 : LoadWide(d, k1 + c));
      MulAddTo(a2, x2, kSameKeys ? y0 : LoadWide(d, k2 + c));
      MulAddTo(a3, x3, kSameKeys ? y0 : LoadWide(d, k3 + c));
      MulAddTo(b0, x0, z0);
      MulAddTo(b1, x1, kSameKeys ? z0 : LoadWide(d, k1 + k_stride + c));
      MulAddTo(b2, x2, kSameKeys ? z0 : LoadWide(d, k2 + k_stride + c));
      MulAddTo(b3, x3, kSameKeys ? z0 : LoadWide(d, k3 + k_stride + c));
    }
    StoreFourSums(a0, a1, a2, a3, s);
    StoreFourSums(b0, b1, b2, b3, s + ld);
    k0 += 2 * k_stride;
    k1 += 2 * k_stride;
    k2 += 2 * k_stride;
    k3 += 2 * k_stride;
  }
  if (j == n) return;
  V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  for (int c = 0; c < dim; c += kLanes) {
    MulAddTo(a0, LoadWide(d, q0 + c), LoadWide(d, k0 + c));
    MulAddTo(a1, LoadWide(d, q1 + c), LoadWide(d, k1 + c));
    MulAddTo(a2, LoadWide(d, q2 + c), LoadWide(d, k2 + c));
    MulAddTo(a3, LoadWide(d, q3 + c), LoadWide(d, k3 + c));
  }
  StoreFourSums(a0, a1, a2, a3, s);
}

// out = sum_j w[j * ws] row j over [begin, end), kVectors of it at column c.
template <int kVectors, class Storage, class Result>
HWY_INLINE void SumColumns(const float* HWY_RESTRICT w, int64_t ws, const Rows<Storage>& rows, int begin,
                           int end, int c, Result* HWY_RESTRICT out) {
  const D d;
  V sum[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (int j = begin; j < end; ++j) {
    const V weight = hn::Set(d, w[j * ws]);
    const Storage* row = rows.row(j) + c;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) MulAddTo(sum[v], weight, LoadWide(d, row + v * kLanes));
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) StoreNarrow(sum[v], out + c + v * kLanes);
}

// The bits of a tile product's row, where what is left out has a weight of 0. `dim` is whole vectors.
template <class Storage, class Result>
HWY_INLINE void WeightedSum(const float* w, int64_t ws, const Rows<Storage>& rows, int begin, int end,
                            int dim, Result* out) {
  int c = 0;
  for (; c + 4 * kLanes <= dim; c += 4 * kLanes) SumColumns<4>(w, ws, rows, begin, end, c, out);
  for (; c < dim; c += kLanes) SumColumns<1>(w, ws, rows, begin, end, c, out);
}

// C[m][dim] = A(m, k) rows[k], with A as in Panels: of one or two terms a call of its own does not pay.
template <bool kUnitK, class Storage>
HWY_INLINE void SmallProduct(int m, int nk, const float* a, int64_t as, const Rows<Storage>& rows, Storage* c,
                             int64_t cs, int dim) {
  if (m * nk > 4) {
    Panels<kUnitK, Out::kStore>(m, nk, a, as, rows.data, rows.stride, c, cs, dim);
    return;
  }
  for (int i = 0; i < m; ++i)
    WeightedSum(a + (kUnitK ? i * as : i), kUnitK ? 1 : as, rows, 0, nk, dim, c + i * cs);
}

// Keys [begin, end) of a row, where weight -0 passes a key over, and what underflowed is no zero beside an
// infinity.
template <class Storage>
inline void SeenSum(const float* w, int64_t ws, const Rows<Storage>& rows, int begin, int end, int dim,
                    Storage* out) {
  const D d;
  for (int c = 0; c < dim; c += kLanes) {
    V sum = hn::Zero(d);
    for (int j = begin; j < end; ++j) {
      const float weight = w[j * ws];
      if (weight == 0.0f && std::signbit(weight)) continue;
      const V value = LoadWide(d, rows.row(j) + c);
      const V factor = weight == 0.0f ? hn::IfThenElse(hn::IsInf(value), hn::Set(d, 1.0f), hn::Zero(d))
                                      : hn::Set(d, weight);
      MulAddTo(sum, factor, value);
    }
    StoreNarrow(sum, out + c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
