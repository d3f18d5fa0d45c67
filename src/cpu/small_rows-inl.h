// What the `small` forward and backward share: the rows and keys of a task, and their scores. One tile holds
// all keys of a head, so nothing is running: no online maximum, no rescaling, no sums carried from tile to
// tile.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Up to how many rows of a head have their scores made by dots instead of from a transpose: all its rows, all
// where what is hidden is left out, and those behind the last whole vector of lanes. A processor that runs
// 512 bits in halves has room for the sums across a vector beside its one multiply-add a cycle; measured.
struct DotRows {
  int all, all_cut, tail;
  bool halves;  // where rows fill half a vector, half of it is computed
};
inline DotRows dot_rows(bool backward) {
  constexpr auto kFew = static_cast<int>(SmallSizes::kDotRows);
  static const bool halved = kLanes == 16 && halves_avx512();
  if (halved) return {16, backward ? 20 : 48, 4, true};
  return {kFew, kFew, kLanes >= 8 ? 4 : 0, false};
}

// `count` rows of any storage, row_stride apart, from element `at`: as fp32 rows of `pitch` that end with
// zeros.
inline void CopyRows(const RowTensor& t, int64_t at, int count, int64_t n, float* to, int64_t pitch) {
  if (t.dtype == DType::bf16) {
    WidenRows(static_cast<const Bf16*>(t.data) + at, t.row_stride, count, n, to, pitch);
  } else if (t.dtype == DType::f16) {
    WidenRows(static_cast<const F16*>(t.data) + at, t.row_stride, count, n, to, pitch);
  } else {
    for (int r = 0; r < count; ++r) ConvertPaddedRow(to + r * pitch, t, at + r * t.row_stride, n, pitch);
  }
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
    t.whole = t.rows <= few                          ? 0
              : beyond <= dots_.tail                 ? t.rows - beyond
              : dots_.halves && beyond <= kLanes / 2 ? t.width - kLanes / 2
                                                     : t.width;
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

  // True where every row that the call reads and writes is of whole vectors of one 16-bit type.
  bool stored_as(DType type, std::initializer_list<const RowTensor*> tensors) const {
    for (const RowTensor* tensor : tensors)
      if (tensor->data && tensor->dtype != type) return false;
    return p_.group() == 1 && p_.head_dim % kLanes == 0 && p_.head_dim_v % kLanes == 0;
  }

  // True where rows of bf16 are widened wherever a product loads them. That takes two operations (f16 takes
  // one), and the more rows there are, the more often: then a buffer pays.
  template <class Bf16Storage>
  static bool widens_loads(const SmallLanes& t) {
    return RowDots<Bf16Storage>::kOwn || t.rows <= 2 * kLanes;
  }

  template <class Storage>
  static TaskRows<Storage> rows_at(const RowTensor& tensor, int64_t at) {
    return {{static_cast<const Storage*>(tensor.data) + at, tensor.row_stride}, tensor.head_stride};
  }

  // The tile's keys.
  template <class Storage>
  TaskRows<Storage> key_rows(const SmallLanes& t, const RowTensor& tensor, int64_t dim, int64_t pitch,
                             float* buffer) const {
    const int64_t at = tensor.at(t.b, t.sequence.kv_begin + t.lo, t.head_kv);
    if constexpr (std::is_same_v<Storage, float>)
      return key_rows_as_float(t, tensor, at, dim, pitch, buffer);
    else
      return rows_at<Storage>(tensor, at);
  }
  TaskRows<float> key_rows_as_float(const SmallLanes& t, const RowTensor& tensor, int64_t at, int64_t dim,
                                    int64_t pitch, float* buffer) const {
    if (in_place(tensor, at, dim)) return rows_at<float>(tensor, at);
    const TaskRows<float> copied{{buffer, pitch}, sizes_.keys * pitch};
    for (int h = 0; h < t.heads; ++h, buffer += copied.step)
      CopyRows(tensor, at + h * tensor.head_stride, t.keys(), dim, buffer, pitch);
    return copied;
  }

  // The rows of a tensor of q's shape. Where they are copied, those that see nothing are zeros.
  template <class Storage>
  TaskRows<Storage> query_rows(const SmallLanes& t, const RowTensor& tensor, int64_t dim, int64_t pitch,
                               float* buffer) const {
    if constexpr (std::is_same_v<Storage, float>)
      return query_rows_as_float(t, tensor, dim, pitch, buffer);
    else
      return rows_at<Storage>(tensor, row_at(t, tensor, 0));
  }
  TaskRows<float> query_rows_as_float(const SmallLanes& t, const RowTensor& tensor, int64_t dim,
                                      int64_t pitch, float* buffer) const {
    if (p_.group() == 1 && !t.dead) {
      const int64_t at = row_at(t, tensor, 0);
      if (in_place(tensor, at, dim)) return rows_at<float>(tensor, at);
      for (int h = 0; h < t.heads; ++h)
        CopyRows(tensor, at + h * tensor.head_stride, t.rows, dim, buffer + h * t.rows * pitch, pitch);
      return {{buffer, pitch}, t.rows * pitch};
    }
    for (int r = 0; r < t.count; ++r) {
      if (t.first[r] < t.last[r])
        ConvertPaddedRow(buffer + r * pitch, tensor, row_at(t, tensor, r), dim, pitch);
      else
        std::fill_n(buffer + r * pitch, pitch, 0.0f);
    }
    return {{buffer, pitch}, t.rows * pitch};
  }

  // What is read number by number: fp32 rows as they stand, others through the buffer.
  static Rows<float> wide_keys(const SmallLanes&, const Rows<float>& y, int64_t, int64_t, float*) {
    return y;
  }
  template <class Storage>
  static Rows<float> wide_keys(const SmallLanes& t, const Rows<Storage>& y, int64_t dim, int64_t pitch,
                               float* buffer) {
    WidenRows(y.data, y.stride, t.keys(), dim, buffer, pitch);
    return {buffer, pitch};
  }

  // Keys of 16 bits are widened by the dots of so many rows themselves: what more rows read comes from a
  // buffer.
  static constexpr int kHeldTwice = 12;

  // s[key][lane] = x . y over `dim` components, x the rows and y the keys of the lane's head. `buffer` takes
  // the keys, rows of `pitch`.
  template <class Storage>
  void scores(const SmallLanes& t, const TaskRows<Storage>& x, const TaskRows<Storage>& y, int64_t dim,
              float* x_t, float* buffer, int64_t pitch, float* s) const {
    const int whole = static_cast<int>(multiple_of(kLanes, dim));
    if (t.heads == 1) {
      Rows<float> keys;
      const bool wide = t.whole > 0 || (t.rows > kHeldTwice && !RowDots<Storage>::kOwn);
      if (wide) keys = wide_keys(t, y.first, dim, pitch, buffer);
      if (t.whole > 0) {
        TransposeToLanes(x.first.data, x.first.stride, std::min(t.whole, t.rows), static_cast<int>(dim), x_t,
                         t.width, 1.0f);
      }
      for (int i = 0; i < t.piece_count; ++i) {
        const Piece& piece = t.pieces[i];
        piece_scores(t, piece, keys.row(piece.first), keys.stride, static_cast<int>(dim), x_t, s);
      }
      if (t.whole >= t.rows) return;
      if constexpr (!RowDots<Storage>::kOwn)
        if (wide) return dot_scores(t, x.first, keys, whole, s);
      dot_scores(t, x.first, y.first, whole, s);
      return;
    }
    LanePointers<Storage> rows, keys;
    for (int h = 0, r = 0; h < t.heads; ++h) {
      for (int i = 0; i < t.rows; ++i, ++r) {
        rows.at[r] = x.of(h).row(i);
        keys.at[r] = y.of(h).data;
      }
    }
    rows.close(t.count);
    keys.close(t.count);
    for (int r = 0; r < t.count; r += 4) {
      const auto score = keys.at[r] == keys.at[r + 3] ? FourRowScores<true, Storage, Storage>
                                                      : FourRowScores<false, Storage, Storage>;
      score(rows.at + r, keys.at + r, y.first.stride, whole, t.keys(), s + r, t.width);
    }
  }

  // Scores of one piece from the transpose.
  static void piece_scores(const SmallLanes& t, const Piece& piece, const float* keys, int64_t stride,
                           int dim, const float* x_t, float* s) {
    const int n = piece.last - piece.first;
    float* at = s + piece.first * t.width;
    int whole = piece.end / kLanes * kLanes;
    const bool half = whole < piece.end, paired = half && (whole - piece.begin) / kLanes % 2 == 1;
    if (paired) whole -= kLanes;
    if (whole > piece.begin)
      ScoreProduct(n, dim, keys, stride, x_t + piece.begin, at + piece.begin, t.width, whole - piece.begin,
                   nullptr);
#if HWY_ARCH_X86 && HWY_CAP_GE512
    const auto half_panel = paired ? HalfPanel<1> : HalfPanel<0>;
    if (half) half_panel(n, dim, keys, stride, x_t + whole, t.width, at + whole, t.width);
#endif
  }

  // Scores of the lanes from `whole` on; 0 where no row needs any.
  template <class Row, class Key>
  void dot_scores(const SmallLanes& t, const Rows<Row>& x, const Rows<Key>& y, int dim, float* s) const {
    const Piece strip = t.needed_by(t.whole, t.rows);
    for (int j = strip.first / SmallLanes::kStrip * SmallLanes::kStrip; j < t.keys(); ++j)
      for (int lane = t.whole; lane < t.width; lane += kLanes)
        hn::Store(hn::Zero(D()), D(), s + j * t.width + lane);
    for (int r = t.whole; r < t.rows; r += 4) {
      const Row* rows[4];
      for (int i = 0; i < 4; ++i) rows[i] = x.row(std::min(r + i, t.rows - 1));
      const Piece four = t.needed_by(r, std::min(r + 4, t.rows));
      const Key* key = y.row(four.first);
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
