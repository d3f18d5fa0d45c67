// Forward with keys in the lanes, one row of q at a time, for calls with a few rows: packing and unpacking a
// whole block of query lanes costs more than their products.
//
//   s[key] = q . k[key]         vectors over the head dim, summed across at the end
//   p = 2^(c s - c m)           vectors over keys
//   o += sum_key p[key] v[key]  vectors over the head dim of v
//
// Task = (sequence, key head, tile_m rows of its queries and query heads), which share each tile of K and V.
// A row reads no key but those it sees, so hidden data cannot reach it.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// The sums across four vectors, one after the other at `to`.
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

// s[j] = q . k_j for n rows; `dim` is whole vectors.
HWY_NOINLINE void RowScores(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, int64_t k_stride,
                            int dim, int n, float* HWY_RESTRICT s) {
  const D d;
  int j = 0;
  for (; j + 4 <= n; j += 4) {
    V sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (int c = 0; c < dim; c += kLanes) {
      const V x = hn::LoadU(d, q + c);
      sum0 = hn::MulAdd(x, hn::LoadU(d, k + c), sum0);
      sum1 = hn::MulAdd(x, hn::LoadU(d, k + k_stride + c), sum1);
      sum2 = hn::MulAdd(x, hn::LoadU(d, k + 2 * k_stride + c), sum2);
      sum3 = hn::MulAdd(x, hn::LoadU(d, k + 3 * k_stride + c), sum3);
    }
    StoreFourSums(sum0, sum1, sum2, sum3, s + j);
    k += 4 * k_stride;
  }
  for (; j < n; ++j, k += k_stride) {
    V sum = hn::Zero(d);
    for (int c = 0; c < dim; c += kLanes) sum = hn::MulAdd(hn::LoadU(d, q + c), hn::LoadU(d, k + c), sum);
    s[j] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// o += sum_j p[j] v_j, kVectors of the head dim at a time.
template <int kVectors>
HWY_INLINE void RowSum(const float* HWY_RESTRICT p, const float* HWY_RESTRICT v, int64_t v_stride, int n,
                       float* HWY_RESTRICT o) {
  const D d;
  V even[kVectors], odd[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) even[i] = odd[i] = hn::Zero(d);
  int j = 0;
  for (; j + 2 <= n; j += 2, v += 2 * v_stride) {
    const V p0 = hn::Set(d, p[j]), p1 = hn::Set(d, p[j + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      even[i] = hn::MulAdd(p0, hn::LoadU(d, v + i * kLanes), even[i]);
      odd[i] = hn::MulAdd(p1, hn::LoadU(d, v + v_stride + i * kLanes), odd[i]);
    }
  }
  if (j < n) {
    const V p0 = hn::Set(d, p[j]);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) even[i] = hn::MulAdd(p0, hn::LoadU(d, v + i * kLanes), even[i]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    float* at = o + i * kLanes;
    hn::StoreU(hn::Add(hn::Add(even[i], odd[i]), hn::LoadU(d, at)), d, at);
  }
}

HWY_NOINLINE void RowOutput(const float* p, const float* v, int64_t v_stride, int dim, int n, float* o) {
  int c = 0;
  for (; c + 4 * kLanes <= dim; c += 4 * kLanes) RowSum<4>(p, v + c, v_stride, n, o + c);
  for (; c < dim; c += kLanes) RowSum<1>(p, v + c, v_stride, n, o + c);
}

class RowForwardRun {
 public:
  RowForwardRun(const ForwardParams& p, const Schedule& schedule, const Launch& launch)
      : p_(p),
        launch_(launch),
        sizes_(p.heads_q, p.heads_kv, p.seqlen_q, p.head_dim, p.head_dim_v, schedule),
        worker_bytes_(row_forward_worker_bytes(sizes_)) {}

  Status run() {
    const int64_t per_head = sizes_.tasks_per_head;
    launch_.executor->run(p_.batch * p_.heads_kv * per_head, sizes_.workers,
                          [this, per_head](int64_t index, int worker) {
                            const int64_t head = index / per_head;
                            task(head / p_.heads_kv, head % p_.heads_kv, index % per_head, worker);
                          });
    return {};
  }

 private:
  struct Row {
    int64_t query, head;
    const float* q;  // padded with zeros to whole vectors
    Interval keys;
    float top, sum;
  };

  void task(int64_t b, int64_t head_kv, int64_t part, int worker) {
    const Sequence s = sequence_of(p_, b);
    const int64_t group = p_.group(), first = part * sizes_.tile_m;
    const int count = static_cast<int>(std::min<int64_t>(sizes_.tile_m, s.rows_q * group - first));
    if (count <= 0) return;
    Arena arena(static_cast<std::byte*>(launch_.scratch) + worker * worker_bytes_, worker_bytes_);
    const RowForwardScratch w(arena, sizes_);
    Row rows[kMaxRows];
    int64_t lo = INT64_MAX, hi = 0;
    for (int r = 0; r < count; ++r) {
      const int64_t query = (first + r) / group, head = head_kv * group + (first + r) % group;
      rows[r] = {query, head, w.q + r * sizes_.pitch_qk, visible_keys(p_, s, b, query), kNegativeInfinity,
                 0.0f};
      if (rows[r].keys.hi <= rows[r].keys.lo) continue;
      lo = std::min(lo, rows[r].keys.lo);
      hi = std::max(hi, rows[r].keys.hi);
      load_query(rows[r], p_.q.at(b, s.q_begin + query, head), w.q + r * sizes_.pitch_qk);
    }
    std::fill_n(w.o, count * sizes_.pitch_v, 0.0f);
    walk(w, s, b, head_kv, rows, count, lo, hi, false);
    for (int r = 0; r < count; ++r) {
      float* o = w.o + r * sizes_.pitch_v;
      if (!AllFinite(o, p_.head_dim_v)) {
        std::fill_n(o, sizes_.pitch_v, 0.0f);
        rows[r].top = kNegativeInfinity;
        rows[r].sum = 0.0f;
        RowForwardScratch one = w;
        one.o = o;
        walk(one, s, b, head_kv, rows + r, 1, lo, hi, true);
      }
      finish(s, b, rows[r], o);
    }
  }

  void load_query(Row& row, int64_t at, float* to) const {
    const float sign = sign_of(p_);
    if (p_.q.dtype == DType::f32 && p_.head_dim % kLanes == 0 && sign == 1.0f) {
      row.q = static_cast<const float*>(p_.q.data) + at;
      return;
    }
    row.q = to;
    ConvertPaddedRow(to, p_.q, at, p_.head_dim, sizes_.pitch_qk);
    if (sign == 1.0f) return;
    for (int64_t c = 0; c < p_.head_dim; ++c) to[c] *= sign;
  }

  // The keys of `count` rows, tile by tile. Tiles lie where they lie for every row, so a row's bits do not
  // depend on its neighbours.
  void walk(const RowForwardScratch& w, const Sequence& s, int64_t b, int64_t head_kv, Row* rows, int count,
            int64_t lo, int64_t hi, bool exact) const {
    const int dim = static_cast<int>(multiple_of(kLanes, p_.head_dim)),
              dim_v = static_cast<int>(multiple_of(kLanes, p_.head_dim_v));
    for (int64_t tile = lo / sizes_.tile_n * sizes_.tile_n; tile < hi; tile += sizes_.tile_n) {
      const int64_t j0 = std::max(tile, lo), j1 = std::min(tile + sizes_.tile_n, hi);
      int64_t k_stride = 0, v_stride = 0;
      const float* k =
          padded_rows(p_.k, p_.head_dim, sizes_.pitch_qk, s, b, head_kv, j0, j1, w.k_tile, &k_stride);
      const float* v =
          padded_rows(p_.v, p_.head_dim_v, sizes_.pitch_v, s, b, head_kv, j0, j1, w.v_tile, &v_stride);
      // Step by step for all rows, not row by row: each step is a chain of its own for every row, and the
      // core works on several at once.
      int from[kMaxRows], n[kMaxRows];
      for (int r = 0; r < count; ++r) {
        const int64_t a0 = std::max(j0, rows[r].keys.lo), a1 = std::min(j1, rows[r].keys.hi);
        from[r] = static_cast<int>(a0 - j0);
        n[r] = static_cast<int>(std::max<int64_t>(a1 - a0, 0));
        if (n[r] > 0)
          RowScores(rows[r].q, k + from[r] * k_stride, k_stride, dim, n[r], w.s + r * sizes_.pitch_s);
      }
      for (int r = 0; r < count; ++r)
        if (n[r] > 0) weigh(w.s + r * sizes_.pitch_s, n[r], rows[r], w.o + r * sizes_.pitch_v, exact);
      for (int r = 0; r < count; ++r) {
        if (n[r] == 0) continue;
        const float* p = w.s + r * sizes_.pitch_s;
        float* o = w.o + r * sizes_.pitch_v;
        if (exact)
          exact_output(p, v + from[r] * v_stride, v_stride, n[r], o);
        else
          RowOutput(p, v + from[r] * v_stride, v_stride, dim_v, n[r], o);
      }
    }
  }

  // Rows [j0, j1) of k or v as fp32, padded with zeros to whole vectors: in place where they are that
  // already.
  const float* padded_rows(const RowTensor& t, int64_t dim, int64_t pitch, const Sequence& s, int64_t b,
                           int64_t head, int64_t j0, int64_t j1, float* buffer, int64_t* stride) const {
    const int64_t at = t.at(b, s.kv_begin + j0, head);
    if (t.dtype == DType::f32 && dim % kLanes == 0) {
      *stride = t.row_stride;
      return static_cast<const float*>(t.data) + at;
    }
    *stride = pitch;
    for (int64_t j = 0; j < j1 - j0; ++j)
      ConvertPaddedRow(buffer + j * pitch, t, at + j * t.row_stride, dim, pitch);
    return buffer;
  }

  // n scores become weights, under the maximum of the row so far; the row's sum and o follow. `exact`: -0
  // where the score is -inf.
  void weigh(float* s, int n, Row& row, float* o, bool exact) const {
    const D d;
    const Weights<false> weights(factor_of(p_));
    const int padded = static_cast<int>(multiple_of(kLanes, n));
    std::fill_n(s + n, padded - n, kNegativeInfinity);
    V maximum = hn::Load(d, s);
    for (int j = kLanes; j < padded; j += kLanes) maximum = hn::Max(maximum, hn::Load(d, s + j));
    const V tile_top = hn::MaxOfLanes(d, maximum);
    const float tile = hn::GetLane(tile_top);
    if (tile > row.top) {
      if (row.sum != 0.0f) {
        const V fall = weights.fall(hn::Set(d, row.top), tile_top);
        row.sum *= hn::GetLane(fall);
        for (int64_t c = 0; c < sizes_.pitch_v; c += kLanes)
          hn::Store(hn::Mul(hn::Load(d, o + c), fall), d, o + c);
      }
      row.top = tile;
    }
    const V shift = weights.shift(hn::Set(d, row.top));
    V sum = hn::Zero(d);
    for (int j = 0; j < padded; j += kLanes) {
      const V score = hn::Load(d, s + j);
      const V p = weights.of(score, shift);
      const auto unseen = hn::Eq(score, hn::Set(d, kNegativeInfinity));
      hn::Store(exact ? hn::IfThenElse(unseen, hn::Set(d, -0.0f), p) : p, d, s + j);
      sum = hn::Add(sum, p);
    }
    row.sum += hn::GetLane(hn::SumOfLanes(d, sum));
  }

  // -0 passes a key over.
  void exact_output(const float* p, const float* v, int64_t v_stride, int n, float* o) const {
    for (int64_t c = 0; c < p_.head_dim_v; ++c) {
      for (int j = 0; j < n; ++j) {
        if (p[j] == 0.0f && std::signbit(p[j])) continue;
        const float value = v[j * v_stride + c];
        o[c] += seen_weight(p[j], value) * value;
      }
    }
  }

  void finish(const Sequence& s, int64_t b, const Row& row, const float* o) const {
    const bool real = row.query < s.len_q;
    const float sink = p_.sinks && real ? p_.sinks[row.head * p_.sinks_stride] : kNegativeInfinity;
    // Keys whose scores are all -inf weigh nothing; NaN scores leave no maximum either, but a sum of NaN.
    const bool empty =
        !real || row.keys.hi <= row.keys.lo || (row.top == kNegativeInfinity && row.sum == 0.0f);
    RowEnd end{0.0f, sink};
    if (!empty) end = join_sink(LogSumExp(row.top * factor_of(p_), false, row.sum), row.sum, sink);
    if (p_.lse.data) p_.lse.at(b, s.q_begin + row.query, row.head) = end.lse;
    StoreRow(p_.o, p_.o.at(b, s.q_begin + row.query, row.head), o, p_.head_dim_v, end.factor, empty);
  }

  const ForwardParams& p_;
  const Launch& launch_;
  const RowForwardSizes sizes_;
  const int64_t worker_bytes_;
};

inline Status RowForward(const Kernel&, const ForwardParams& p, const Schedule& schedule,
                         const Launch& launch) {
  return RowForwardRun(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
