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

// Products: RowFloats (row_floats-inl.h) or RowPairs (row_pairs-inl.h).
template <class Products>
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
        products_(p, sizes_) {}

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

  float* queries(const RowTask& t, const RowForwardScratch& w, int64_t h) const {
    return w.q + h * t.count * sizes_.pitch_qk;
  }

  void load_queries(const RowTask& t, const RowForwardScratch& w) const {
    for (int64_t h = 0; h < t.heads; ++h)
      products_.load_queries(t, h, general_ ? 1.0f : sign_of(p_), w, queries(t, w, h));
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
        const TileScales scales(*this, tile, h);
        scores(t, tile, &next, w, h, 0, t.count, scales.k);
        for (int r = 0; r < t.count; ++r) {
          weigh(t, tile, w, t.rows[row0 + r], r, states[row0 + r], o + (row0 + r) * sizes_.pitch_v, scales.v,
                false);
        }
        outputs(t, tile, &next, w, h, 0, t.count, o + row0 * sizes_.pitch_v, false);
      }
    }
    for (int r = 0; r < t.all(); ++r) {
      float* row = o + r * sizes_.pitch_v;
      if (!AllFinite(row, sizes_.pitch_v)) exact_row(t, w, begin, end, r, states[r], row);
    }
  }

  // Row r once more, without the keys that it does not see; its scores among the same rows as before.
  void exact_row(const RowTask& t, const RowForwardScratch& w, int64_t begin, int64_t end, int r,
                 RowState& state, float* o) const {
    std::fill_n(o, sizes_.pitch_v, 0.0f);
    state = RowState();
    const int64_t h = r / t.count;
    const int of_head = r % t.count, among = of_head % Products::kTogether, r0 = of_head - among;
    KeyPointers tile;
    for (int64_t first = begin; first < end; first += sizes_.tile_n) {
      locate(tile, t, first);
      const TileScales scales(*this, tile, h);
      scores(t, tile, nullptr, w, h, r0, std::min(Products::kTogether, t.count - r0), scales.k);
      weigh(t, tile, w, t.rows[r], among, state, o, scales.v, true);
      outputs(t, tile, nullptr, w, h, among, 1, o, true);
    }
  }

  // Of a tile's keys, of one key head; null where the call has none.
  struct TileScales {
    TileScales(const RowForwardRun& run, const KeyPointers& tile, int64_t h)
        : k(tile.load_scales(&KeyPointers::ScaleRun::k, run.p_.k_scales, h, k_buffer)),
          v(tile.load_scales(&KeyPointers::ScaleRun::v, run.p_.v_scales, h, v_buffer)) {}
    alignas(64) float k_buffer[kMaxRowKeys], v_buffer[kMaxRowKeys];
    const float *k, *v;
  };

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

  // Rows [r0, r0 + count) of key head h, into w.s from its first row on.
  void scores(const RowTask& t, const KeyPointers& tile, const KeyPointers* next, const RowForwardScratch& w,
              int64_t h, int r0, int count, const float* scales) const {
    const Upcoming upcoming = upcoming_of(t, next, next ? next->k : nullptr, h, k_bytes_ * p_.k.head_stride,
                                          k_bytes_ * p_.head_dim, products_.score_steps(count));
    products_.scores(tile, h, queries(t, w, h), r0, count, t.count, w, upcoming);
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
      WeighRow<true, Products::kRounded>(factor_of(p_), s, padded, state, o, sizes_.pitch_v, scales, exact);
    else
      WeighRow<false, Products::kRounded>(factor_of(p_), s, padded, state, o, sizes_.pitch_v, scales, exact);
  }

  // By the weights of rows [r0, r0 + count) of w.s.
  void outputs(const RowTask& t, const KeyPointers& tile, const KeyPointers* next, const RowForwardScratch& w,
               int64_t h, int r0, int count, float* o, bool exact) const {
    const Upcoming upcoming = upcoming_of(t, next, next ? next->v : nullptr, h, v_bytes_ * p_.v.head_stride,
                                          v_bytes_ * p_.head_dim_v, products_.output_steps(count));
    products_.outputs(tile, h, w.s + r0 * sizes_.pitch_s, count, o, exact, w, upcoming);
  }

  void finish(const RowTask& t, const RowForwardScratch& w) const {
    for (int r = 0; r < t.all(); ++r) {
      const RowOfTask& row = t.rows[r];
      const bool real = row.query < t.s.len_q, empty = !real || row.all.empty();
      const RowEnd end =
          EndOfRow(p_, general_, row.all.top, row.all.sum, real ? SinkOf(p_, row.head) : kNegativeInfinity);
      if (p_.lse.data) p_.lse.at(t.b, t.s.q_begin + row.query, row.head) = end.lse;
      const float* o = w.o + r * sizes_.pitch_v;
      if (!empty) o = products_.in_order(o, w.row);
      StoreRow(p_.o, p_.o.at(t.b, t.s.q_begin + row.query, row.head), o, p_.head_dim_v, end.factor, empty);
    }
  }

  const ForwardParams& p_;
  const Launch& launch_;
  const RowForwardSizes sizes_;
  const int64_t worker_bytes_, k_bytes_, v_bytes_, heads_;
  const RowForwardPartials partials_;
  const bool general_;
  const Products products_;
};

inline Status RowForward(const Kernel&, const ForwardParams& p, const Schedule& schedule,
                         const Launch& launch) {
  return RowForwardRun<RowFloats>(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
