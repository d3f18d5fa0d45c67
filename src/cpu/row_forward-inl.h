// Forward with keys in the lanes, for calls with a few rows of q: decode, and whatever packing a whole block
// of query lanes would cost more than its products.
//
//   s[row][key] = q_row . k_key     tile by tile, kSharing rows on each read of a key (row_product-inl.h)
//   p = 2^(c s - c m)               vectors over keys
//   o_row += sum_key p[row][key] v_key
//
// Task = (sequence, key head, tile_m rows of its queries and query heads[, chunk of kSplitKeys keys]), which
// share each read of K and V. Every chunk gives a part of its own, and parts are joined in ascending order,
// by the task that walks them all or by a second pass over what other tasks left: the bits are the same. The
// rows of a task meet every key that one of them sees, with weight 0 where it is hidden from them; where a
// hidden key's V is not finite, the row is taken once more by SeenRowOutput. While a tile is computed, the
// lines of the next are asked for: rows at the stride of [row, head, dim], or of pages, are nothing that the
// hardware's prefetchers foresee.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

class RowForwardRun {
 public:
  RowForwardRun(const ForwardParams& p, const Schedule& schedule, const Launch& launch)
      : p_(p),
        launch_(launch),
        sizes_(p.heads_q, p.heads_kv, p.seqlen_q, p.seqlen_kv, p.head_dim, p.head_dim_v, schedule),
        worker_bytes_(row_forward_worker_bytes(sizes_)),
        tasks_(p.batch * p.heads_kv * sizes_.tasks_per_head),
        partials_(partials_of()),
        general_(needs_general_scores(p)),
        reads_k_(reading_of(p.k, p.head_dim)),
        reads_v_(reading_of(p.v, p.head_dim_v)) {}

  Status run() {
    if (sizes_.chunks == 1) {
      launch_.executor->run(tasks_, sizes_.workers, [this](int64_t task, int worker) { all_keys(task, worker); });
      return {};
    }
    launch_.executor->run(tasks_ * sizes_.chunks, sizes_.workers, [this](int64_t index, int worker) {
      one_chunk(index / sizes_.chunks, index % sizes_.chunks, worker);
    });
    launch_.executor->run(tasks_, sizes_.workers, [this](int64_t task, int worker) { join(task, worker); });
    return {};
  }

 private:
  // In the caller's storage, or converted to fp32 where a row is no whole steps.
  enum class Reading { floats, halves, brains, converted };

  struct Row {
    int64_t query, head;
    Interval keys;
    RowPlace place;
    RowState all;
  };

  // Rows of q and what they see together.
  struct Task {
    int64_t b, head_kv;
    Sequence s;
    int count = 0;
    int64_t lo = INT64_MAX, hi = 0;
    Row rows[kMaxRows];
  };

  // Keys [first + from, first + to), a pointer each.
  struct KeyTile {
    int64_t first = 0;
    int from = 0, to = 0;
    const char *k[kMaxRowKeys], *v[kMaxRowKeys];
  };

  static Reading reading_of(const RowTensor& t, int64_t dim) {
    if (dim % kStep != 0) return Reading::converted;
    if (t.dtype == DType::f32) return Reading::floats;
#if HWY_TARGET == HWY_SCALAR
    return Reading::converted;
#else
    return t.dtype == DType::bf16 ? Reading::brains : Reading::halves;
#endif
  }

  RowForwardPartials partials_of() const {
    const int64_t own = worker_bytes_ * sizes_.workers;
    Arena arena(static_cast<std::byte*>(launch_.scratch) + own, launch_.scratch_bytes - own);
    return RowForwardPartials(arena, sizes_, tasks_);
  }

  RowForwardScratch scratch_of(int worker) const {
    Arena arena(static_cast<std::byte*>(launch_.scratch) + worker * worker_bytes_, worker_bytes_);
    return RowForwardScratch(arena, sizes_);
  }

  bool begin(Task& t, int64_t index) const {
    const int64_t head = index / sizes_.tasks_per_head, group = p_.group();
    t.b = head / p_.heads_kv;
    t.head_kv = head % p_.heads_kv;
    t.s = sequence_of(p_, t.b);
    const int64_t first = index % sizes_.tasks_per_head * sizes_.tile_m;
    t.count = static_cast<int>(std::min<int64_t>(sizes_.tile_m, t.s.rows_q * group - first));
    for (int r = 0; r < t.count; ++r) {
      Row& row = t.rows[r];
      row.query = (first + r) / group;
      row.head = t.head_kv * group + (first + r) % group;
      row.keys = visible_keys(p_, t.s, t.b, row.query);
      row.all = RowState();
      if (general_) row.place = PlaceOfRow(p_, t.s, t.b, row.head, row.query);
      if (row.keys.hi <= row.keys.lo) continue;
      t.lo = std::min(t.lo, row.keys.lo);
      t.hi = std::max(t.hi, row.keys.hi);
    }
    return t.count > 0;
  }

  void all_keys(int64_t index, int worker) const {
    Task t;
    if (!begin(t, index)) return;
    const RowForwardScratch w = scratch_of(worker);
    load_queries(t, w);
    const int64_t begin_chunk = t.lo < t.hi ? t.lo / kSplitKeys : 0,
                  end_chunk = t.lo < t.hi ? (t.hi - 1) / kSplitKeys + 1 : 0;
    if (end_chunk - begin_chunk == 1) {
      RowState states[kMaxRows];
      chunk(t, w, begin_chunk, states, w.o);
      for (int r = 0; r < t.count; ++r) t.rows[r].all = states[r];
    } else {
      for (int64_t c = begin_chunk; c < end_chunk; ++c) {
        RowState states[kMaxRows];
        chunk(t, w, c, states, w.part);
        for (int r = 0; r < t.count; ++r)
          add_part(t.rows[r], w, r, states[r], w.part + r * sizes_.pitch_v);
      }
    }
    finish(t, w);
  }

  void one_chunk(int64_t index, int64_t c, int worker) const {
    Task t;
    if (!begin(t, index) || c * kSplitKeys >= t.hi || (c + 1) * kSplitKeys <= t.lo) return;
    const RowForwardScratch w = scratch_of(worker);
    load_queries(t, w);
    RowState states[kMaxRows];
    const int64_t at = (index * sizes_.chunks + c) * sizes_.rows;
    chunk(t, w, c, states, partials_.o + at * sizes_.pitch_v);
    for (int r = 0; r < t.count; ++r) {
      partials_.top[at + r] = states[r].top;
      partials_.sum[at + r] = states[r].sum;
    }
  }

  void join(int64_t index, int worker) const {
    Task t;
    if (!begin(t, index)) return;
    const RowForwardScratch w = scratch_of(worker);
    for (int64_t c = 0; c * kSplitKeys < t.hi; ++c) {
      if ((c + 1) * kSplitKeys <= t.lo) continue;
      for (int r = 0; r < t.count; ++r) {
        const int64_t at = (index * sizes_.chunks + c) * sizes_.rows + r;
        add_part(t.rows[r], w, r, {partials_.top[at], partials_.sum[at]}, partials_.o + at * sizes_.pitch_v);
      }
    }
    finish(t, w);
  }

  void add_part(Row& row, const RowForwardScratch& w, int r, const RowState& part, const float* o) const {
    float* all = w.o + r * sizes_.pitch_v;
    if (general_)
      JoinPart<true>(factor_of(p_), row.all, all, part, o, w.row, sizes_.pitch_v);
    else
      JoinPart<false>(factor_of(p_), row.all, all, part, o, w.row, sizes_.pitch_v);
  }

  void load_queries(const Task& t, const RowForwardScratch& w) const {
    const float sign = general_ ? 1.0f : sign_of(p_);
    for (int r = 0; r < t.count; ++r) {
      float* to = w.q + r * sizes_.pitch_qk;
      if (t.rows[r].keys.hi <= t.rows[r].keys.lo) {
        std::fill_n(to, sizes_.pitch_qk, 0.0f);
        continue;
      }
      const int64_t at = p_.q.at(t.b, t.s.q_begin + t.rows[r].query, t.rows[r].head);
      const bool dealt = reads_k_ == Reading::brains;
      float* row = dealt ? w.k_tile : to;  // no row is converted into the tile where rows are dealt
      ConvertPaddedRow(row, p_.q, at, p_.head_dim, sizes_.pitch_qk);
      if (dealt) DealRow(row, to, sizes_.pitch_qk, false);
      if (sign == 1.0f) continue;
      for (int64_t c = 0; c < p_.head_dim; ++c) to[c] *= sign;
    }
  }

  void locate(KeyTile& tile, const Task& t, int64_t first) const {
    tile.first = first;
    tile.from = static_cast<int>(std::max(t.lo - first, int64_t{0}));
    tile.to = static_cast<int>(std::min<int64_t>(t.hi - first, sizes_.tile_n));
    const int64_t k_bytes = p_.k.dtype == DType::f32 ? 4 : 2, v_bytes = p_.v.dtype == DType::f32 ? 4 : 2;
    for (int j = tile.from; j < tile.to;) {
      const KeyRun run = key_run(p_, t.s, t.b, first + j, tile.to - j);
      const char* k =
          static_cast<const char*>(p_.k.data) + k_bytes * p_.k.at(run.block, run.row, t.head_kv);
      const char* v =
          static_cast<const char*>(p_.v.data) + v_bytes * p_.v.at(run.block, run.row, t.head_kv);
      for (int64_t i = 0; i < run.count; ++i, ++j) {
        tile.k[j] = k + i * k_bytes * p_.k.row_stride;
        tile.v[j] = v + i * v_bytes * p_.v.row_stride;
      }
    }
  }

  // The keys of chunk c: the rows' states, and their sums at `o`.
  void chunk(const Task& t, const RowForwardScratch& w, int64_t c, RowState* states, float* o) const {
    std::fill_n(o, t.count * sizes_.pitch_v, 0.0f);
    walk(t, w, c, 0, t.count, states, o, false);
    for (int r = 0; r < t.count; ++r) {
      float* row = o + r * sizes_.pitch_v;
      if (AllFinite(row, sizes_.pitch_v)) continue;
      std::fill_n(row, sizes_.pitch_v, 0.0f);
      states[r] = RowState();
      walk(t, w, c, r, 1, states + r, row, true);
    }
  }

  // `count` rows from `row0` on, tile by tile. Tiles lie where they lie for every row.
  void walk(const Task& t, const RowForwardScratch& w, int64_t c, int row0, int count, RowState* states,
            float* o, bool exact) const {
    const int64_t begin = std::max(c * kSplitKeys, t.lo) / sizes_.tile_n * sizes_.tile_n,
                  end = std::min((c + 1) * kSplitKeys, t.hi);
    KeyTile tiles[2];
    locate(tiles[0], t, begin);
    for (int64_t first = begin, n = 0; first < end; first += sizes_.tile_n, ++n) {
      KeyTile &tile = tiles[n & 1], &next = tiles[~n & 1];
      next.from = next.to = 0;
      if (first + sizes_.tile_n < t.hi) locate(next, t, first + sizes_.tile_n);
      scores(tile, next, w, row0, count);
      for (int r = 0; r < count; ++r) weigh(t, tile, w, t.rows[row0 + r], r, states[r], o, exact);
      outputs(tile, next, w, count, o, exact);
    }
  }

  // The rows of a tile as they are read: in place, or brought to fp32.
  const char* const* rows_of(const KeyTile& tile, const char* const* in_place, const RowTensor& t, int64_t dim,
                             int64_t pitch, float* buffer, const char** converted) const {
    const int64_t bytes = t.dtype == DType::f32 ? 4 : 2;
    for (int j = tile.from; j < tile.to; ++j) {
      float* to = buffer + j * pitch;
      const int64_t at = (in_place[j] - static_cast<const char*>(t.data)) / bytes;
      ConvertPaddedRow(to, t, at, dim, pitch);
      converted[j] = reinterpret_cast<const char*>(to);
    }
    return converted;
  }

  // Calls body(Rows) for how k or v is read.
  template <typename F>
  static void with_rows(Reading reading, F&& body) {
    switch (reading) {
#if HWY_TARGET != HWY_SCALAR
      case Reading::halves:
        return body(StoredHalves());
      case Reading::brains:
        return body(StoredBrains());
#endif
      default:
        return body(StoredFloats());
    }
  }

  void scores(const KeyTile& tile, const KeyTile& next, const RowForwardScratch& w, int row0,
              int count) const {
    const char* converted[kMaxRowKeys];
    const char* const* k = tile.k;
    if (reads_k_ == Reading::converted)
      k = rows_of(tile, tile.k, p_.k, p_.head_dim, sizes_.pitch_qk, w.k_tile, converted);
    const int dim = static_cast<int>(multiple_of(kStep, p_.head_dim)), n = tile.to - tile.from;
    const Upcoming upcoming = upcoming_of(next, next.k, p_.k, p_.head_dim);
    with_rows(reads_k_, [&](auto rows) {
      ForSharingRows(count, [&](auto sharing, int r) {
        RowScores<decltype(rows), sharing.value>(w.q + (row0 + r) * sizes_.pitch_qk, sizes_.pitch_qk,
                                                 k + tile.from, dim, n,
                                                 w.s + r * sizes_.pitch_s + tile.from, sizes_.pitch_s,
                                                 r == 0 ? upcoming : Upcoming());
      });
    });
  }

  static Upcoming upcoming_of(const KeyTile& next, const char* const* rows, const RowTensor& t, int64_t dim) {
    return {rows + next.from, next.to - next.from, static_cast<int>(dim * (t.dtype == DType::f32 ? 4 : 2))};
  }

  // Scores of row r of the tile become weights; 0 for the keys that it does not see.
  void weigh(const Task& t, const KeyTile& tile, const RowForwardScratch& w, const Row& row, int r,
             RowState& state, float* o, bool exact) const {
    float* s = w.s + r * sizes_.pitch_s;
    float* own = o + r * sizes_.pitch_v;
    const int padded = static_cast<int>(multiple_of(kLanes, tile.to));
    const int a0 = static_cast<int>(std::clamp<int64_t>(row.keys.lo - tile.first, tile.from, tile.to));
    const int a1 = static_cast<int>(std::clamp<int64_t>(row.keys.hi - tile.first, a0, tile.to));
    if (general_ && a0 < a1) {
      alignas(64) int32_t ids[kMaxRowKeys];
      const bool segmented = p_.segment_ids_kv.data != nullptr;
      if (segmented) load_key_segments(ids + a0, p_, t.s, t.b, tile.first + a0, a1 - a0);
      const bool added =
          load_row_bias_and_mask(w.add, p_, t.b, row.head, row.query, tile.first, a0, a1);
      FinishRowScores(s, a0, a1, p_, row.place, tile.first, added ? w.add : nullptr,
                      segmented ? ids : nullptr);
    }
    std::fill_n(s, a0, kNegativeInfinity);
    std::fill_n(s + a1, padded - a1, kNegativeInfinity);
    if (general_)
      WeighRow<true>(factor_of(p_), s, padded, state, own, sizes_.pitch_v, exact);
    else
      WeighRow<false>(factor_of(p_), s, padded, state, own, sizes_.pitch_v, exact);
  }

  void outputs(const KeyTile& tile, const KeyTile& next, const RowForwardScratch& w, int count, float* o,
               bool exact) const {
    const char* converted[kMaxRowKeys];
    const char* const* v = tile.v;
    if (reads_v_ == Reading::converted)
      v = rows_of(tile, tile.v, p_.v, p_.head_dim_v, sizes_.pitch_v, w.v_tile, converted);
    const int dim = static_cast<int>(multiple_of(kStep, p_.head_dim_v)), n = tile.to - tile.from;
    const Upcoming upcoming = upcoming_of(next, next.v, p_.v, p_.head_dim_v);
    with_rows(reads_v_, [&](auto rows) {
      using Rows = decltype(rows);
      if (exact) return SeenRowOutput<Rows>(w.s + tile.from, v + tile.from, dim, n, o);
      ForSharingRows(count, [&](auto sharing, int r) {
        RowOutput<Rows, sharing.value>(w.s + r * sizes_.pitch_s + tile.from, sizes_.pitch_s, v + tile.from, dim,
                                       n, o + r * sizes_.pitch_v, sizes_.pitch_v,
                                       r == 0 ? upcoming : Upcoming());
      });
    });
  }

  void finish(const Task& t, const RowForwardScratch& w) const {
    for (int r = 0; r < t.count; ++r) {
      const Row& row = t.rows[r];
      const bool real = row.query < t.s.len_q, empty = !real || row.all.empty();
      const float sink = p_.sinks && real ? p_.sinks[row.head * p_.sinks_stride] : kNegativeInfinity;
      RowEnd end{0.0f, sink};
      if (!empty) {
        const float top = general_ ? row.all.top : row.all.top * factor_of(p_);
        end = join_sink(LogSumExp(top, general_, row.all.sum), row.all.sum, sink);
      }
      if (p_.lse.data) p_.lse.at(t.b, t.s.q_begin + row.query, row.head) = end.lse;
      const float* o = w.o + r * sizes_.pitch_v;
      if (reads_v_ == Reading::brains && !empty) {
        DealRow(o, w.row, p_.head_dim_v, true);
        o = w.row;
      }
      StoreRow(p_.o, p_.o.at(t.b, t.s.q_begin + row.query, row.head), o, p_.head_dim_v, end.factor, empty);
    }
  }

  const ForwardParams& p_;
  const Launch& launch_;
  const RowForwardSizes sizes_;
  const int64_t worker_bytes_, tasks_;
  const RowForwardPartials partials_;
  const bool general_;
  const Reading reads_k_, reads_v_;
};

inline Status RowForward(const Kernel&, const ForwardParams& p, const Schedule& schedule,
                         const Launch& launch) {
  return RowForwardRun(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
