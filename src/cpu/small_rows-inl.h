// What the `small` forward and backward share: the rows and keys of a task, and products over them that pack
// as little as they can. One tile holds all keys of a head, so nothing is running: no online maximum, no
// rescaling, no sums carried from tile to tile.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Rows of whole vectors, wherever they stand.
struct FloatRows {
  const float* data = nullptr;
  int64_t stride = 0;
  const float* row(int64_t i) const { return data + i * stride; }
  FloatRows from(int64_t i) const { return {row(i), stride}; }
};

// The rows of all heads of a task, `step` floats from head to head.
struct TaskRows {
  FloatRows first;
  int64_t step = 0;
  FloatRows of(int h) const { return {first.data + h * step, first.stride}; }
};

// Pointers of a task's lanes, up to a multiple of four: the last row stands in for what is missing.
struct LanePointers {
  const float* at[kSmallRows];
  void close(int count) {
    for (int r = count; r % 4 != 0; ++r) at[r] = at[count - 1];
  }
};

inline bool aligned_rows(const float* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % (kLanes * sizeof(float)) == 0 && stride % kLanes == 0;
}

// s[j][r] = q_r . k_r[j], r < 4, j < n: each of the four rows has keys of its own, or, kSameKeys, all those
// of the first, which are then loaded once. `dim` is whole vectors.
template <bool kSameKeys>
HWY_NOINLINE void FourRowScores(const float* const* q, const float* const* k, int64_t k_stride, int dim,
                                int n, float* HWY_RESTRICT s, int64_t ld) {
  const D d;
  const float *q0 = q[0], *q1 = q[1], *q2 = q[2], *q3 = q[3];
  const float *k0 = k[0], *k1 = kSameKeys ? k0 : k[1], *k2 = kSameKeys ? k0 : k[2],
              *k3 = kSameKeys ? k0 : k[3];
  int j = 0;
  for (; j + 2 <= n; j += 2, s += 2 * ld) {
    V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (int c = 0; c < dim; c += kLanes) {
      const V x0 = hn::LoadU(d, q0 + c), x1 = hn::LoadU(d, q1 + c), x2 = hn::LoadU(d, q2 + c),
              x3 = hn::LoadU(d, q3 + c);
      const V y0 = hn::LoadU(d, k0 + c), z0 = hn::LoadU(d, k0 + k_stride + c);
      MulAddTo(a0, x0, y0);
      MulAddTo(a1, x1, kSameKeys ? y0 : hn::LoadU(d, k1 + c));
      MulAddTo(a2, x2, kSameKeys ? y0 : hn::LoadU(d, k2 + c));
      MulAddTo(a3, x3, kSameKeys ? y0 : hn::LoadU(d, k3 + c));
      MulAddTo(b0, x0, z0);
      MulAddTo(b1, x1, kSameKeys ? z0 : hn::LoadU(d, k1 + k_stride + c));
      MulAddTo(b2, x2, kSameKeys ? z0 : hn::LoadU(d, k2 + k_stride + c));
      MulAddTo(b3, x3, kSameKeys ? z0 : hn::LoadU(d, k3 + k_stride + c));
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
    MulAddTo(a0, hn::LoadU(d, q0 + c), hn::LoadU(d, k0 + c));
    MulAddTo(a1, hn::LoadU(d, q1 + c), hn::LoadU(d, k1 + c));
    MulAddTo(a2, hn::LoadU(d, q2 + c), hn::LoadU(d, k2 + c));
    MulAddTo(a3, hn::LoadU(d, q3 + c), hn::LoadU(d, k3 + c));
  }
  StoreFourSums(a0, a1, a2, a3, s);
}

// out = sum_j w[j * ws] row j over [begin, end), kVectors of it at column c.
template <int kVectors>
HWY_INLINE void SumColumns(const float* HWY_RESTRICT w, int64_t ws, const FloatRows& rows, int begin, int end,
                           int c, float* HWY_RESTRICT out) {
  const D d;
  V sum[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (int j = begin; j < end; ++j) {
    const V weight = hn::Set(d, w[j * ws]);
    const float* row = rows.row(j) + c;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) MulAddTo(sum[v], weight, hn::LoadU(d, row + v * kLanes));
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, out + c + v * kLanes);
}

// The bits of a tile product's row, where what is left out has a weight of 0. `dim` is whole vectors.
HWY_INLINE void WeightedSum(const float* w, int64_t ws, const FloatRows& rows, int begin, int end, int dim,
                            float* out) {
  int c = 0;
  for (; c + 4 * kLanes <= dim; c += 4 * kLanes) SumColumns<4>(w, ws, rows, begin, end, c, out);
  for (; c < dim; c += kLanes) SumColumns<1>(w, ws, rows, begin, end, c, out);
}

// C[m][dim] = A(m, k) rows[k], with A as in Panels: of one or two terms a call of its own does not pay.
template <bool kUnitK>
HWY_INLINE void SmallProduct(int m, int nk, const float* a, int64_t as, const FloatRows& rows, float* c,
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
inline void SeenSum(const float* w, int64_t ws, const FloatRows& rows, int begin, int end, int dim,
                    float* out) {
  const D d;
  for (int c = 0; c < dim; c += kLanes) {
    V sum = hn::Zero(d);
    for (int j = begin; j < end; ++j) {
      const float weight = w[j * ws];
      if (weight == 0.0f && std::signbit(weight)) continue;
      const V value = hn::LoadU(d, rows.row(j) + c);
      const V factor = weight == 0.0f ? hn::IfThenElse(hn::IsInf(value), hn::Set(d, 1.0f), hn::Zero(d))
                                      : hn::Set(d, weight);
      MulAddTo(sum, factor, value);
    }
    hn::StoreU(sum, d, out + c);
  }
}

// Up to how many rows of a head have their scores made by dots instead of from a transpose: all its rows, all
// where what is hidden is left out, and those behind the last whole vector of lanes. A processor that runs
// 512 bits in halves has room for the sums across a vector beside its one multiply-add a cycle; measured.
struct DotRows {
  int all, all_cut, tail;
};
inline DotRows dot_rows(bool backward) {
  constexpr auto kFew = static_cast<int>(SmallSizes::kDotRows);
  static const bool halved = kLanes == 16 && halves_avx512();
  if (halved) return {16, backward ? 20 : 48, 4};
  return {kFew, kFew, kLanes >= 8 ? 4 : 0};
}

// What a call knows before its first task.
class SmallRun {
 public:
  SmallRun(const ForwardParams& p, const Schedule& schedule, const Launch& launch, bool backward)
      : p_(p),
        launch_(launch),
        sizes_(fitted(
            SmallSizes(p.heads_q, p.heads_kv, p.seqlen_q, p.seqlen_kv, p.head_dim, p.head_dim_v, schedule),
            p.heads_kv, backward, launch.scratch_bytes)),
        worker_bytes_(small_worker_bytes(sizes_, backward)),
        backward_(backward),
        dim_(static_cast<int>(multiple_of(kLanes, p.head_dim))),
        dim_v_(static_cast<int>(multiple_of(kLanes, p.head_dim_v))),
        dots_(dot_rows(backward)) {}

 protected:
  // Every part of every sequence. A worker takes neighbours in a row, whose lanes differ by the head alone,
  // as few as leave each worker some turns. attend(t, worker): true where it changed t otherwise.
  template <class Attend>
  void each_part(const Attend& attend) const {
    constexpr int64_t kTurns = 4;
    const int64_t wanted = sizes_.workers > 1 ? kTurns * sizes_.workers : 1;
    const int64_t runs =
        std::clamp<int64_t>((wanted + p_.batch - 1) / std::max<int64_t>(p_.batch, 1), 1, sizes_.tasks);
    launch_.executor->run(p_.batch * runs, sizes_.workers, [&](int64_t index, int worker) {
      const int64_t b = index / runs, begin = index % runs * sizes_.tasks / runs,
                    end = (index % runs + 1) * sizes_.tasks / runs;
      SmallLanes t;
      bool changed = true;
      for (int64_t part = begin; part < end; ++part) {
        if (changed || !next_heads(t, part)) fill(t, b, part);
        changed = attend(t, worker);
      }
    });
  }

  // The lanes of the part before `part` become its own; false where they are of another number of heads.
  bool next_heads(SmallLanes& t, int64_t part) const {
    if (p_.heads_kv - part * sizes_.heads < t.heads) return false;
    const int64_t heads = part * sizes_.heads - t.head_kv;
    t.head_kv += heads;
    for (int r = 0; r < t.count; ++r) t.head[r] += static_cast<int32_t>(heads * p_.group());
    return true;
  }

  SmallScratch scratch(int worker) const {
    Arena arena(static_cast<std::byte*>(launch_.scratch) + worker * worker_bytes_, worker_bytes_);
    return SmallScratch(arena, sizes_, backward_);
  }

  void fill(SmallLanes& t, int64_t b, int64_t part) const {
    const int64_t group = p_.group();
    t.b = b;
    t.sequence = sequence_of(p_, b);
    t.head_kv = part * sizes_.heads;
    t.heads = static_cast<int>(std::min(sizes_.heads, p_.heads_kv - t.head_kv));
    t.rows = static_cast<int>(t.sequence.len_q * group);
    t.count = t.heads * t.rows;
    t.width = static_cast<int>(multiple_of(std::max(kLanes, 4), t.count));  // dots come in fours
    const Sequence& s = t.sequence;
    TileBounds bounds;
    const bool same = rows_see_the_same(p_);
    Interval keys;
    if (same && s.len_q > 0) bounds.add(keys = visible_keys(p_, s, b, 0));
    if (group == 1) {
      for (int r = 0; r < t.rows; ++r) t.query[r] = r;
      std::fill_n(t.head, t.rows, static_cast<int32_t>(t.head_kv));
    } else {
      for (int r = 0, i = 0; i < s.len_q; ++i) {
        for (int g = 0; g < group; ++g, ++r) {
          t.query[r] = i;
          t.head[r] = static_cast<int32_t>(t.head_kv * group) + g;
        }
      }
    }
    if (same) {
      std::fill_n(t.first, t.rows, static_cast<int32_t>(keys.lo));
      std::fill_n(t.last, t.rows, static_cast<int32_t>(keys.hi));
    }
    for (int r = 0; r < t.rows && !same; ++r) {
      bounds.add(keys = visible_keys(p_, s, b, t.query[r]));
      t.first[r] = static_cast<int32_t>(keys.lo);
      t.last[r] = static_cast<int32_t>(keys.hi);
    }
    t.lo = bounds.empty() ? 0 : bounds.lo_min;
    t.hi = bounds.hi_max;
    t.partial = bounds.empty() || bounds.lo_max > t.lo || bounds.hi_min < t.hi;
    t.dead = bounds.empty() || bounds.hi_min == 0;
    for (int r = 0; r < t.rows; ++r) {
      t.first[r] -= static_cast<int32_t>(t.lo);
      t.last[r] -= static_cast<int32_t>(t.lo);
    }
    for (int r = t.rows; r < t.count; ++r) {
      t.first[r] = t.first[r - t.rows];
      t.last[r] = t.last[r - t.rows];
      t.query[r] = t.query[r - t.rows];
      t.head[r] = t.head[r - t.rows] + static_cast<int32_t>(group);
    }
    for (int r = t.count; r < t.width; ++r) t.first[r] = t.last[r] = 0;
    t.cut_tiles(t.heads == 1);
    const int beyond = t.rows % kLanes, few = t.is_cut ? dots_.all_cut : dots_.all;
    t.whole = t.rows <= few ? 0 : beyond <= dots_.tail ? t.rows - beyond : t.width;
    t.cut_pieces();
  }

  int64_t row_at(const SmallLanes& t, const RowTensor& tensor, int lane) const {
    return tensor.at(t.b, t.sequence.q_begin + t.query[lane], t.head[lane]);
  }

  // Rows as fp32 on whole vectors are read where they are: products take them as they stand. All heads of a
  // task alike: they share a stride.
  bool in_place(const RowTensor& tensor, int64_t at, int64_t dim) const {
    return tensor.dtype == DType::f32 && dim % kLanes == 0 &&
           aligned_rows(static_cast<const float*>(tensor.data) + at, tensor.row_stride) &&
           (sizes_.heads == 1 || tensor.head_stride % kLanes == 0);
  }

  // The tile's keys.
  TaskRows key_rows(const SmallLanes& t, const RowTensor& tensor, int64_t dim, int64_t pitch,
                    float* buffer) const {
    const int64_t at = tensor.at(t.b, t.sequence.kv_begin + t.lo, t.head_kv);
    if (in_place(tensor, at, dim))
      return {{static_cast<const float*>(tensor.data) + at, tensor.row_stride}, tensor.head_stride};
    const TaskRows copied{{buffer, pitch}, sizes_.keys * pitch};
    for (int h = 0; h < t.heads; ++h, buffer += copied.step)
      for (int j = 0; j < t.keys(); ++j)
        ConvertPaddedRow(buffer + j * pitch, tensor, at + h * tensor.head_stride + j * tensor.row_stride, dim,
                         pitch);
    return copied;
  }

  // The rows of a tensor of q's shape. Where they are copied, those that see nothing are zeros.
  TaskRows query_rows(const SmallLanes& t, const RowTensor& tensor, int64_t dim, int64_t pitch,
                      float* buffer) const {
    if (p_.group() == 1 && !t.dead) {
      const int64_t at = row_at(t, tensor, 0);
      if (in_place(tensor, at, dim))
        return {{static_cast<const float*>(tensor.data) + at, tensor.row_stride}, tensor.head_stride};
    }
    for (int r = 0; r < t.count; ++r) {
      if (t.first[r] < t.last[r])
        ConvertPaddedRow(buffer + r * pitch, tensor, row_at(t, tensor, r), dim, pitch);
      else
        std::fill_n(buffer + r * pitch, pitch, 0.0f);
    }
    return {{buffer, pitch}, t.rows * pitch};
  }

  // s[key][lane] = x . y over `dim` components, x the rows and y the keys of the lane's head.
  void scores(const SmallLanes& t, const TaskRows& x, const TaskRows& y, int64_t dim, float* x_t,
              float* s) const {
    const int whole = static_cast<int>(multiple_of(kLanes, dim));
    if (t.heads == 1) {
      const FloatRows& keys = y.first;
      if (t.whole > 0)
        TransposeToLanes(x.first.data, x.first.stride, std::min(t.whole, t.rows), static_cast<int>(dim), x_t,
                         t.width, 1.0f);
      for (int i = 0; i < t.piece_count; ++i) {
        const Piece& piece = t.pieces[i];
        ScoreProduct(piece.last - piece.first, static_cast<int>(dim), keys.row(piece.first), keys.stride,
                     x_t + piece.begin, s + piece.first * t.width + piece.begin, t.width,
                     piece.end - piece.begin, nullptr);
      }
      if (t.whole < t.rows) dot_scores(t, x.first, keys, whole, s);
      return;
    }
    LanePointers rows, keys;
    for (int h = 0, r = 0; h < t.heads; ++h) {
      for (int i = 0; i < t.rows; ++i, ++r) {
        rows.at[r] = x.of(h).row(i);
        keys.at[r] = y.of(h).data;
      }
    }
    rows.close(t.count);
    keys.close(t.count);
    for (int r = 0; r < t.count; r += 4) {
      const auto score = keys.at[r] == keys.at[r + 3] ? FourRowScores<true> : FourRowScores<false>;
      score(rows.at + r, keys.at + r, y.first.stride, whole, t.keys(), s + r, t.width);
    }
  }

  // Scores of the lanes from `whole` on; 0 where no row needs any.
  void dot_scores(const SmallLanes& t, const FloatRows& x, const FloatRows& y, int dim, float* s) const {
    const Piece strip = t.needed_by(t.whole, t.rows);
    for (int j = strip.first / SmallLanes::kStrip * SmallLanes::kStrip; j < t.keys(); ++j)
      for (int lane = t.whole; lane < t.width; lane += kLanes)
        hn::Store(hn::Zero(D()), D(), s + j * t.width + lane);
    for (int r = t.whole; r < t.rows; r += 4) {
      const float* rows[4];
      for (int i = 0; i < 4; ++i) rows[i] = x.row(std::min(r + i, t.rows - 1));
      const Piece four = t.needed_by(r, std::min(r + 4, t.rows));
      const float* key = y.row(four.first);
      FourRowScores<true>(rows, &key, y.stride, dim, four.last - four.first, s + four.first * t.width + r,
                          t.width);
    }
  }

  // A statistic of every row of the task.
  void load_stats(const SmallLanes& t, const RowStats& stats, float* to) const {
    if (p_.group() != 1) {
      for (int r = 0; r < t.count; ++r) to[r] = stats.at(t.b, t.sequence.q_begin + t.query[r], t.head[r]);
      return;
    }
    for (int h = 0; h < t.heads; ++h, to += t.rows) {
      const float* from = &stats.at(t.b, t.sequence.q_begin, t.head_kv + h);
      for (int i = 0; i < t.rows; ++i) to[i] = from[i * stats.row_stride];
    }
  }

  void store_stats(const SmallLanes& t, const float* from, const RowStats& stats) const {
    if (p_.group() != 1) {
      for (int r = 0; r < t.count; ++r) stats.at(t.b, t.sequence.q_begin + t.query[r], t.head[r]) = from[r];
      return;
    }
    for (int h = 0; h < t.heads; ++h, from += t.rows) {
      float* to = &stats.at(t.b, t.sequence.q_begin, t.head_kv + h);
      for (int i = 0; i < t.rows; ++i) to[i * stats.row_stride] = from[i];
    }
  }

  const ForwardParams& p_;
  const Launch& launch_;
  const SmallSizes sizes_;
  const int64_t worker_bytes_;
  const bool backward_;
  const int dim_, dim_v_;  // whole vectors
  const DotRows dots_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
