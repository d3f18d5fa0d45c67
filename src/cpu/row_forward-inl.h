// Forward with keys in the lanes, for calls with a few rows of q: decode, and whatever packing a whole block
// of query lanes would cost more than its products.
//
//   s[row][key] = q_row . k_key     tile by tile, kSharing rows on each read of a key (row_product-inl.h)
//   p = 2^(c s - c m)               vectors over keys
//   o_row += sum_key p[row][key] v_key
//
// RowTask = (sequence, key heads side by side, tile_m rows of q of each[, chunk of kSplitKeys keys]), which
// share each read of K and V. Every chunk gives a part of its own, and parts are joined in ascending order,
// by the task that walks them all or by a second pass over what other tasks left: the bits are the same. The
// rows of a task meet every key that one of them sees, with weight 0 where it is hidden from them; where a
// hidden key's V is not finite, the row is taken once more by SeenRowOutput.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

class RowForwardRun {
 public:
  RowForwardRun(const ForwardParams& p, const Schedule& schedule, const Launch& launch)
      : p_(p),
        launch_(launch),
        sizes_(p.heads_q, p.heads_kv, p.seqlen_q, p.seqlen_kv, p.head_dim, p.head_dim_v, schedule),
        worker_bytes_(row_forward_worker_bytes(sizes_)),
        k_bytes_(bits_of(p.k.dtype) / 8),
        v_bytes_(bits_of(p.v.dtype) / 8),
        heads_(heads_of()),
        partials_(partials_of()),
        general_(needs_general_scores(p)),
        reads_k_(reading_of(p.k, p.head_dim)),
        reads_v_(reading_of(p.v, p.head_dim_v)) {}

  Status run() {
    const int64_t groups = (p_.heads_kv + heads_ - 1) / heads_, parts = sizes_.parts, chunks = sizes_.chunks;
    const int64_t tasks = p_.batch * groups * parts * chunks;
    Stretches stretches(tasks, sizes_.workers);
    launch_.executor->run(
        tasks, sizes_.workers, [this, groups, parts, chunks, &stretches](int64_t, int worker) {
          const int64_t index = stretches.next(worker);
          const int64_t c = index % chunks, rest = index / chunks, group = rest / parts;
          const RowForwardScratch w = scratch_of(worker);
          RowTask t(w.rows);
          if (!t.begin(p_, sizes_, general_, group / groups, group % groups * heads_, heads_, rest % parts))
            return;
          if (chunks == 1)
            all_keys(t, w);
          else
            one_chunk(t, c, w);
        });
    if (chunks == 1) return {};
    launch_.executor->run(
        p_.batch * p_.heads_kv * parts, sizes_.workers, [this, parts](int64_t index, int worker) {
          const int64_t head = index / parts;
          const RowForwardScratch w = scratch_of(worker);
          RowTask t(w.rows);
          if (t.begin(p_, sizes_, general_, head / p_.heads_kv, head % p_.heads_kv, 1, index % parts))
            join(t, w);
        });
    return {};
  }

 private:
  // In the caller's storage, or converted to fp32 where a row is no whole steps.
  enum class Reading { floats, halves, brains, bytes, converted };

  static Reading reading_of(const RowTensor& t, int64_t dim) {
    if (dim % kStep != 0 || t.dtype == DType::f8e4m3) return Reading::converted;
    if (t.dtype == DType::f32) return Reading::floats;
#if HWY_TARGET == HWY_SCALAR
    return Reading::converted;
#else
    return t.dtype == DType::bf16 ? Reading::brains : t.dtype == DType::i8 ? Reading::bytes : Reading::halves;
#endif
  }

  // One, where a head's rows do not lie among those of the others.
  int64_t heads_of() const {
    const auto apart = [](const RowTensor& t) { return std::abs(t.head_stride) >= std::abs(t.row_stride); };
    if (apart(p_.k) || apart(p_.v)) return 1;
    return sizes_.heads(p_.batch, p_.heads_kv, k_bytes_ * p_.head_dim + v_bytes_ * p_.head_dim_v);
  }

  RowForwardPartials partials_of() const {
    const int64_t own = worker_bytes_ * sizes_.workers;
    Arena arena(static_cast<std::byte*>(launch_.scratch) + own, launch_.scratch_bytes - own);
    return RowForwardPartials(arena, sizes_, p_.batch * p_.heads_kv);
  }

  // Where the partial results of a task's head begin, in rows.
  int64_t partial_at(const RowTask& t, int64_t head, int64_t c) const {
    return (((t.b * p_.heads_kv + t.head_kv + head) * sizes_.parts + t.part) * sizes_.chunks + c) *
           sizes_.rows;
  }

  RowForwardScratch scratch_of(int worker) const {
    Arena arena(static_cast<std::byte*>(launch_.scratch) + worker * worker_bytes_, worker_bytes_);
    return RowForwardScratch(arena, sizes_);
  }

  void all_keys(const RowTask& t, const RowForwardScratch& w) const {
    RowState* states = w.states;
    load_queries(t, w);
    if (t.end_chunk() - t.first_chunk() == 1) {
      chunk(t, w, t.first_chunk(), states, w.o);
      for (int r = 0; r < t.all(); ++r) t.rows[r].all = states[r];
    } else {
      for (int64_t c = t.first_chunk(); c < t.end_chunk(); ++c) {
        chunk(t, w, c, states, w.part);
        for (int r = 0; r < t.all(); ++r) add_part(t, w, r, states[r], w.part + r * sizes_.pitch_v);
      }
    }
    finish(t, w);
  }

  void one_chunk(const RowTask& t, int64_t c, const RowForwardScratch& w) const {
    if (c < t.first_chunk() || c >= t.end_chunk()) return;
    RowState* states = w.states;
    load_queries(t, w);
    chunk(t, w, c, states, w.part);
    for (int i = 0; i < t.all(); ++i) {
      const int64_t at = partial_at(t, i / t.count, c) + i % t.count;
      partials_.top[at] = states[i].top;
      partials_.sum[at] = states[i].sum;
      std::memcpy(partials_.o + at * sizes_.pitch_v, w.part + i * sizes_.pitch_v,
                  static_cast<size_t>(sizes_.pitch_v) * sizeof(float));
    }
  }

  void join(const RowTask& t, const RowForwardScratch& w) const {
    for (int64_t c = t.first_chunk(); c < t.end_chunk(); ++c) {
      for (int r = 0; r < t.count; ++r) {
        const int64_t at = partial_at(t, 0, c) + r;
        add_part(t, w, r, {partials_.top[at], partials_.sum[at]}, partials_.o + at * sizes_.pitch_v);
      }
    }
    finish(t, w);
  }

  void add_part(const RowTask& t, const RowForwardScratch& w, int r, const RowState& part,
                const float* o) const {
    float* all = w.o + r * sizes_.pitch_v;
    if (general_)
      JoinPart<true>(factor_of(p_), t.rows[r].all, all, part, o, w.row, sizes_.pitch_v);
    else
      JoinPart<false>(factor_of(p_), t.rows[r].all, all, part, o, w.row, sizes_.pitch_v);
  }

  void load_queries(const RowTask& t, const RowForwardScratch& w) const {
    const float sign = general_ ? 1.0f : sign_of(p_);
    const bool dealt = reads_k_ == Reading::brains;
    for (int r = 0; r < t.all(); ++r) {
      float* to = w.q + r * sizes_.pitch_qk;
      if (t.rows[r].keys.hi <= t.rows[r].keys.lo) {
        std::fill_n(to, sizes_.pitch_qk, 0.0f);
        continue;
      }
      const int64_t at = p_.q.at(t.b, t.s.q_begin + t.rows[r].query, t.rows[r].head);
      float* row = dealt ? w.k_tile : to;  // no key is converted into the tile where rows are dealt
      ConvertPaddedRow(row, p_.q, at, p_.head_dim, sizes_.pitch_qk);
      if (dealt) DealRow(row, to, sizes_.pitch_qk, false);
      if (sign == 1.0f) continue;
      for (int64_t c = 0; c < p_.head_dim; ++c) to[c] *= sign;
    }
  }

  void locate(KeyPointers& tile, const RowTask& t, int64_t first) const {
    tile.locate(p_, t.s, t.b, t.head_kv, first, t.lo, t.hi, sizes_.tile_n);
  }

  // The keys of chunk c: the rows' states, and their sums at `o`.
  void chunk(const RowTask& t, const RowForwardScratch& w, int64_t c, RowState* states, float* o) const {
    std::fill_n(states, t.all(), RowState());
    std::fill_n(o, t.all() * sizes_.pitch_v, 0.0f);
    KeyPointers tiles[2];
    const int64_t begin = std::max(c * kSplitKeys, t.lo) / sizes_.tile_n * sizes_.tile_n,
                  end = std::min((c + 1) * kSplitKeys, t.hi);
    locate(tiles[0], t, begin);
    for (int64_t first = begin, n = 0; first < end; first += sizes_.tile_n, ++n) {
      KeyPointers &tile = tiles[n & 1], &next = tiles[~n & 1];
      next.from = next.to = 0;
      if (first + sizes_.tile_n < t.hi) locate(next, t, first + sizes_.tile_n);
      for (int64_t h = 0; h < t.heads; ++h) {
        const int row0 = static_cast<int>(h) * t.count;
        one_tile(t, tile, &next, w, h, row0, t.count, states + row0, o + row0 * sizes_.pitch_v, false);
      }
    }
    for (int r = 0; r < t.all(); ++r) {
      float* row = o + r * sizes_.pitch_v;
      if (!AllFinite(row, sizes_.pitch_v)) exact_row(t, w, begin, end, r, states[r], row);
    }
  }

  // Row r once more, without the keys that it does not see.
  void exact_row(const RowTask& t, const RowForwardScratch& w, int64_t begin, int64_t end, int r,
                 RowState& state, float* o) const {
    std::fill_n(o, sizes_.pitch_v, 0.0f);
    state = RowState();
    KeyPointers tile;
    for (int64_t first = begin; first < end; first += sizes_.tile_n) {
      locate(tile, t, first);
      one_tile(t, tile, nullptr, w, r / t.count, r, 1, &state, o, true);
    }
  }

  // `count` rows from `row0` on, of the task's key head h.
  void one_tile(const RowTask& t, const KeyPointers& tile, const KeyPointers* next,
                const RowForwardScratch& w, int64_t h, int row0, int count, RowState* states, float* o,
                bool exact) const {
    scores(t, tile, next, w, h, row0, count);
    alignas(64) float buffer[kMaxRowKeys];
    const float* scales = tile.load_scales(&KeyPointers::ScaleRun::v, p_.v_scales, h, buffer);
    for (int r = 0; r < count; ++r)
      weigh(t, tile, w, t.rows[row0 + r], r, states[r], o + r * sizes_.pitch_v, scales, exact);
    outputs(t, tile, next, w, h, count, o, exact);
  }

  // What of the next tile is asked for beside head h's turn at this one: its share of the rows, all heads of
  // each.
  Upcoming upcoming_of(const RowTask& t, const KeyPointers* next, const char* const* rows, int64_t h,
                       int64_t head_bytes, int64_t bytes, int64_t steps) const {
    if (!next || next->to <= next->from) return {};
    const int64_t all = next->to - next->from, from = all * h / t.heads, to = all * (h + 1) / t.heads;
    Upcoming u;
    u.rows = rows + next->from + from;
    u.count = static_cast<int>(to - from);
    u.bytes = static_cast<int>((t.heads - 1) * std::abs(head_bytes) + bytes);
    if (head_bytes < 0) return {};
    u.lines_a_step = static_cast<int>((u.count * ((u.bytes + 63) / 64) + steps - 1) / steps);
    return u;
  }

  // Where the rows of one key head of a tile begin: `offset` bytes behind the pointers.
  struct TileRows {
    const char* const* rows;
    int64_t offset;
  };

  // Of k or v, `from` the tile's pointers: as they are stored, or brought to fp32 where that is no whole
  // steps.
  TileRows rows_of(const KeyPointers& tile, const char* const* from, int64_t h, const RowTensor& t,
                   Reading reading, int64_t dim, int64_t pitch, float* buffer, const char** converted) const {
    const int64_t bytes = bits_of(t.dtype) / 8, offset = h * bytes * t.head_stride;
    if (reading != Reading::converted) return {from, offset};
    for (int j = tile.from; j < tile.to; ++j) {
      float* to = buffer + j * pitch;
      const int64_t at = (from[j] + offset - static_cast<const char*>(t.data)) / bytes;
      ConvertPaddedRow(to, t, at, dim, pitch);
      converted[j] = reinterpret_cast<const char*>(to);
    }
    return {converted, 0};
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
      case Reading::bytes:
        return body(StoredBytes());
#endif
      default:
        return body(StoredFloats());
    }
  }

  void scores(const RowTask& t, const KeyPointers& tile, const KeyPointers* next, const RowForwardScratch& w,
              int64_t h, int row0, int count) const {
    const char* converted[kMaxRowKeys];
    const TileRows k =
        rows_of(tile, tile.k, h, p_.k, reads_k_, p_.head_dim, sizes_.pitch_qk, w.k_tile, converted);
    const int dim = static_cast<int>(multiple_of(kStep, p_.head_dim)), n = tile.to - tile.from;
    const Upcoming upcoming =
        upcoming_of(t, next, next ? next->k : nullptr, h, k_bytes_ * p_.k.head_stride, k_bytes_ * p_.head_dim,
                    sizes_.tile_n / kKeysAtOnce * (dim / kStep));
    with_rows(reads_k_, [&](auto rows) {
      ForSharingRows(count, [&](auto sharing, int r) {
        RowScores<decltype(rows), sharing.value>(
            w.q + (row0 + r) * sizes_.pitch_qk, sizes_.pitch_qk, k.rows + tile.from, k.offset, dim, n,
            w.s + r * sizes_.pitch_s + tile.from, sizes_.pitch_s, r == 0 ? upcoming : Upcoming());
      });
    });
    alignas(64) float buffer[kMaxRowKeys];
    const float* scales = tile.load_scales(&KeyPointers::ScaleRun::k, p_.k_scales, h, buffer);
    if (!scales) return;
    const D d;
    for (int r = 0; r < count; ++r) {
      float* s = w.s + r * sizes_.pitch_s;
      for (int j = 0; j < tile.to; j += kLanes)
        hn::Store(hn::Mul(hn::Load(d, s + j), hn::Load(d, scales + j)), d, s + j);
    }
  }

  // Scores of row r of the tile become weights; 0 for the keys that it does not see.
  void weigh(const RowTask& t, const KeyPointers& tile, const RowForwardScratch& w, const RowOfTask& row,
             int r, RowState& state, float* o, const float* scales, bool exact) const {
    float* s = w.s + r * sizes_.pitch_s;
    const int padded = static_cast<int>(multiple_of(kLanes, tile.to));
    const int a0 = static_cast<int>(std::clamp<int64_t>(row.keys.lo - tile.first, tile.from, tile.to));
    const int a1 = static_cast<int>(std::clamp<int64_t>(row.keys.hi - tile.first, a0, tile.to));
    if (general_ && a0 < a1) {
      alignas(64) int32_t ids[kMaxRowKeys];
      const bool segmented = p_.segment_ids_kv.data != nullptr;
      if (segmented) load_key_segments(ids + a0, p_, t.s, t.b, tile.first + a0, a1 - a0);
      const bool added = load_row_bias_and_mask(w.add, p_, t.b, row.head, row.query, tile.first, a0, a1);
      FinishRowScores(s, a0, a1, p_, row.place, tile.first, added ? w.add : nullptr,
                      segmented ? ids : nullptr);
    }
    std::fill_n(s, a0, kNegativeInfinity);
    std::fill_n(s + a1, padded - a1, kNegativeInfinity);
    if (general_)
      WeighRow<true>(factor_of(p_), s, padded, state, o, sizes_.pitch_v, scales, exact);
    else
      WeighRow<false>(factor_of(p_), s, padded, state, o, sizes_.pitch_v, scales, exact);
  }

  void outputs(const RowTask& t, const KeyPointers& tile, const KeyPointers* next, const RowForwardScratch& w,
               int64_t h, int count, float* o, bool exact) const {
    const char* converted[kMaxRowKeys];
    const TileRows v =
        rows_of(tile, tile.v, h, p_.v, reads_v_, p_.head_dim_v, sizes_.pitch_v, w.v_tile, converted);
    const int dim = static_cast<int>(multiple_of(kStep, p_.head_dim_v)), n = tile.to - tile.from;
    const Upcoming upcoming =
        upcoming_of(t, next, next ? next->v : nullptr, h, v_bytes_ * p_.v.head_stride,
                    v_bytes_ * p_.head_dim_v, sizes_.tile_n * ((dim + 2 * kStep - 1) / (2 * kStep)));
    with_rows(reads_v_, [&](auto rows) {
      using Rows = decltype(rows);
      if (exact) return SeenRowOutput<Rows>(w.s + tile.from, v.rows + tile.from, v.offset, dim, n, o);
      ForSharingRows(count, [&](auto sharing, int r) {
        RowOutput<Rows, sharing.value>(w.s + r * sizes_.pitch_s + tile.from, sizes_.pitch_s,
                                       v.rows + tile.from, v.offset, dim, n, o + r * sizes_.pitch_v,
                                       sizes_.pitch_v, r == 0 ? upcoming : Upcoming());
      });
    });
  }

  void finish(const RowTask& t, const RowForwardScratch& w) const {
    for (int r = 0; r < t.all(); ++r) {
      const RowOfTask& row = t.rows[r];
      const bool real = row.query < t.s.len_q, empty = !real || row.all.empty();
      const RowEnd end =
          EndOfRow(p_, general_, row.all.top, row.all.sum, real ? SinkOf(p_, row.head) : kNegativeInfinity);
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
  const int64_t worker_bytes_, k_bytes_, v_bytes_, heads_;
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
