// CPU forward: for a task's q blocks (tile_m lanes each), over the keys that they see, tile by tile:
//
//   S^T = K Q^T        the packed Q^T carries the scale's sign alone, K is read row by row
//   mask               only in tiles that some lane sees in part; interior tiles run none of it
//   P^T = 2^(c S^T - c m)  in place, where m is the running maximum of each lane, c = |scale| log2 e
//   O^T += V^T P^T     after O^T and the sums were scaled down where m rose
//
// then O = O^T / sum, lse = (c m + log2 sum) ln 2. A lane's bits depend on its own row alone: neighbours only
// add keys whose weight is exactly 0. Where such a key's V is not finite, 0 * NaN would reach every lane of
// the tile; so each block votes on its O^T, and if that is not finite, runs once more with SeenProduct.
//
// `Products` is what the two products are made of (fp32_products-inl.h); all else is the same for each.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

template <class Products>
class ForwardRun {
  using Element = typename Products::Element;

 public:
  ForwardRun(const ForwardParams& p, const Schedule& schedule, const Launch& launch)
      : p_(p),
        launch_(launch),
        sizes_(p.batch, p.heads_q, p.heads_kv, p.seqlen_q, p.head_dim, p.head_dim_v, schedule),
        worker_bytes_(forward_worker_bytes(sizes_)),
        general_(needs_general_scores(p)) {}

  Status run() {
    launch_.executor->run(sizes_.tasks, sizes_.workers, [this](int64_t index, int worker) {
      const ForwardSizes::Task t = sizes_.task(index, p_.window_right >= 0);
      task(t.head / p_.heads_kv, t.head % p_.heads_kv, t.first, t.count, worker);
    });
    return {};
  }

 private:
  static constexpr int kUnit = Products::kUnit;

  // Rows of one key tile: key j at k + (j - first) * k_stride, its values with those of its unit.
  struct Keys {
    const Element *k = nullptr, *v = nullptr;
    int64_t k_stride = 0, v_stride = 0, first = 0;
  };

  // Up to `most` q blocks of a key head from block `first_block` on.
  void task(int64_t b, int64_t head_kv, int64_t first_block, int most, int worker) {
    const Sequence s = sequence_of(p_, b);
    const int64_t group = p_.group(), all = s.rows_q * group, m = sizes_.tile_m;
    const int64_t first = first_block * m;
    if (first >= all) return;
    Arena arena(static_cast<std::byte*>(launch_.scratch) + worker * worker_bytes_, worker_bytes_);
    const ForwardScratch w(arena, sizes_);
    ForwardBlock blocks[ForwardSizes::kMostBlocks] = {};
    int count = 0;
    for (; count < most && first + count * m < all; ++count) {
      const int64_t at = first + count * m;
      const int lanes = static_cast<int>(std::min(m, all - at));
      ForwardBlock& block = blocks[count] = {w.lanes + count,
                                             w.q_t + count * m * sizes_.pitch_qk,
                                             w.o_t + count * m * p_.head_dim_v,
                                             w.top + count * m,
                                             w.sum + count * m,
                                             (lanes + kLanes - 1) / kLanes * kLanes,
                                             false,
                                             false};
      fill_lanes(*block.lanes, p_, s, b, head_kv * group, static_cast<int>(group), at, lanes);
      BeginSoftmax(block);
    }
    attend(w, s, b, head_kv, blocks, count, false);
    for (int i = 0; i < count; ++i) {
      if (!blocks[i].started) ClearOutput(blocks[i], p_.head_dim_v);
      if (!AllFinite(blocks[i].o_t, blocks[i].width * p_.head_dim_v)) {
        BeginSoftmax(blocks[i]);
        attend(w, s, b, head_kv, blocks + i, 1, true);
      }
      WriteOutput(blocks[i], p_, general_, w.tile_top, w.rows, sizes_.pitch_v);
    }
  }

  // All keys of `count` blocks, tile by tile. `exact`: by SeenProduct.
  void attend(const ForwardScratch& w, const Sequence& s, int64_t b, int64_t head_kv, ForwardBlock* blocks,
              int count, bool exact) const {
    int64_t lo = INT64_MAX, hi = 0;
    for (int i = 0; i < count; ++i) {
      lo = std::min(lo, blocks[i].lanes->bounds.lo_min);
      hi = std::max(hi, blocks[i].lanes->bounds.hi_max);
    }
    for (int64_t tile = lo / sizes_.tile_n * sizes_.tile_n; tile < hi; tile += sizes_.tile_n) {
      const int64_t j0 = std::max(tile, lo), j1 = std::min(tile + sizes_.tile_n, hi);
      Keys keys;
      Ahead ahead;
      ask_for_keys(ahead, s, b, head_kv, j1, std::min(j1 + sizes_.tile_n, hi));
      const int32_t* segments = nullptr;
      SegmentBounds segment_bounds;
      for (int i = 0; i < count; ++i) {
        ForwardBlock& block = blocks[i];
        const Lanes& lanes = *block.lanes;
        const int64_t a0 = std::max(j0, lanes.bounds.lo_min), a1 = std::min(j1, lanes.bounds.hi_max);
        if (a0 >= a1) continue;
        TileClass tile_class = lanes.bounds.classify(a0, a1);
        if (p_.segment_ids_kv.data) {
          if (!segments) {
            segment_bounds = load_key_segments(w.segments, p_, s, b, j0, static_cast<int>(j1 - j0));
            segments = w.segments;
          }
          tile_class = classify_segments(tile_class, lanes.segments, segment_bounds);
          if (tile_class == TileClass::skip) continue;
        }
        if (!keys.k) keys = load_keys(w, s, b, head_kv, j0, static_cast<int>(j1 - j0), count > 1);
        if (!block.packed) {
          Products::Pack(block, p_, general_ ? 1.0f : sign_of(p_), w, sizes_);
          block.packed = true;
          if (i + 1 < count && !blocks[i + 1].packed)
            ask_for_rows(ahead, p_.q, p_.head_dim, s, b, *blocks[i + 1].lanes);
        } else if (a1 == lanes.bounds.hi_max) {
          ask_for_rows(ahead, p_.o, p_.head_dim_v, s, b, lanes);
        }
        const int64_t steps = ((a1 - a0) + p_.head_dim_v) / kPanelRows;
        ahead.spread(steps, (count - i) * steps);
        one_tile(w, block, keys, segments, a0, static_cast<int>(a1 - a0), tile_class, exact, &ahead);
      }
    }
  }

  // The next tile of K and V.
  void ask_for_keys(Ahead& ahead, const Sequence& s, int64_t b, int64_t head_kv, int64_t j0,
                    int64_t j1) const {
    if (j0 >= j1) return;
    const KeyRun run = key_run(p_, s, b, j0, j1 - j0);  // of several pages the first
    AskForRows(ahead, Ahead::kOwn, p_.k, run.block, head_kv, run.row, run.count, p_.head_dim);
    AskForRows(ahead, Ahead::kOwn + 1, p_.v, run.block, head_kv, run.row, run.count, p_.head_dim_v);
  }

  // A block's rows of q or o: where the heads of a group stand side by side, they are one longer row.
  void ask_for_rows(Ahead& ahead, const RowTensor& t, int64_t dim, const Sequence& s, int64_t b,
                    const Lanes& lanes) const {
    const int64_t group = p_.group();
    if (!t.data || (group > 1 && t.head_stride != dim) || lanes.count < group) return;
    AskForRows(ahead, 0, t, b, lanes.head[0] / group * group, s.q_begin + lanes.row[0], lanes.count / group,
               dim * group);
  }

  Keys load_keys(const ForwardScratch& w, const Sequence& s, int64_t b, int64_t head_kv, int64_t j0, int n,
                 bool shared) const {
    Keys keys;
    keys.first = j0;
    keys.k = Products::Keys(p_, s, b, head_kv, j0, n, w, sizes_, shared, &keys.k_stride);
    keys.v = Products::Values(p_, s, b, head_kv, j0, n, w, sizes_, shared, &keys.v_stride);
    return keys;
  }

  // Keys [j0, j0 + n) of one block.
  void one_tile(const ForwardScratch& w, ForwardBlock& block, const Keys& keys, const int32_t* segments,
                int64_t j0, int n, TileClass tile_class, bool exact, Ahead* ahead) const {
    const int width = block.width, d = depth(), dv = static_cast<int>(p_.head_dim_v);
    const Element* k = keys.k + (j0 - keys.first) * keys.k_stride;
    Piece pieces[kMaxPieces];
    int piece_count = 1;
    pieces[0] = {0, n, 0, width / kLanes};
    const bool plain = tile_class == TileClass::full && !general_;
    if (plain && d <= kDepth) {
      Panels<true, Out::kStoreMax>(n, d, k, keys.k_stride, elements(block.q_t), width, w.s, width, width,
                                   w.tile_top, ahead);
    } else {
      if (tile_class == TileClass::partial)
        piece_count = cut_pieces(pieces, *block.lanes, j0, n, width / kLanes, kLanes, kUnit);
      for (int i = 0; i < piece_count; ++i) scores(w, block, pieces[i], k, keys.k_stride, ahead);
      if (!plain) mask(w, *block.lanes, width, segments ? segments + (j0 - keys.first) : nullptr, j0, n);
      ColumnMaxima(w.s, width, n, width, w.tile_top);
    }
    if (general_)
      weights<true>(w, block, n, exact);
    else
      weights<false>(w, block, n, exact);
    if (p_.dropout_threshold) {
      LoadDropout(w.keep, width, p_, *block.lanes, j0, n);
      Multiply(w.s, w.keep, static_cast<int64_t>(n) * width);
    }
    Products::Weights(w.s, width, j0, n);
    if (!block.started && plain && !exact) {
      block.started = true;
      Panels<false, Out::kStore>(dv, units(j0, j0 + n), values_of(keys, j0), keys.v_stride, elements(w.s),
                                 width, block.o_t, width, width, nullptr, ahead);
      return;
    }
    if (!block.started) ClearOutput(block, p_.head_dim_v);
    for (int i = 0; i < piece_count; ++i) {
      const Piece& piece = pieces[i];
      const int x = piece.begin * kLanes, lanes = piece.end * kLanes - x;
      const int64_t begin = j0 + piece.first;
      const int rows = units(begin, j0 + piece.last);
      const Element* values = values_of(keys, begin);
      const Element* p = elements(w.s) + (begin / kUnit - j0 / kUnit) * width + x;
      if (exact)
        Products::Seen(dv, rows, values, keys.v_stride, p, width, block.o_t + x, lanes);
      else
        Panels<false, Out::kAccumulate>(dv, rows, values, keys.v_stride, p, width, block.o_t + x, width,
                                        lanes, nullptr, ahead);
    }
  }

  static const Element* elements(const float* scratch) { return ElementsOf<Element>(scratch); }
  // Of q and k in a row.
  int depth() const { return static_cast<int>((p_.head_dim + kUnit - 1) / kUnit); }
  // Rows of values and of weights that hold keys [begin, end).
  static int units(int64_t begin, int64_t end) {
    return static_cast<int>((end + kUnit - 1) / kUnit - begin / kUnit);
  }
  static const Element* values_of(const Keys& keys, int64_t key) {
    return keys.v + (key / kUnit - keys.first / kUnit) * keys.v_stride;
  }

  // S^T of one piece of a tile; -inf in the vectors that see none of its keys.
  void scores(const ForwardScratch& w, const ForwardBlock& block, const Piece& piece, const Element* k,
              int64_t k_stride, Ahead* ahead) const {
    const int width = block.width, d = depth(), n = piece.last - piece.first;
    const int x = piece.begin * kLanes, end = piece.end * kLanes;
    k += piece.first * k_stride;
    float* s = w.s + piece.first * width;
    ScoreProduct(n, d, k, k_stride, elements(block.q_t) + x, s + x, width, end - x, ahead);
    FillOutside(s, width, n, x, end, width, kNegativeInfinity);
  }

  template <bool kNatural>
  void weights(const ForwardScratch& w, const ForwardBlock& block, int n, bool exact) const {
    const int width = block.width;
    RaiseTop<kNatural, Products::kRounded>(factor_of(p_), w.tile_top, block.top, block.sum, block.o_t, width,
                                           static_cast<int>(p_.head_dim_v), width);
    if (exact)
      ExponentialsMarked<kNatural, Products::kRounded>(factor_of(p_), w.s, width, n, width, block.top,
                                                       block.sum);
    else
      Exponentials<kNatural, Products::kRounded>(factor_of(p_), w.s, width, n, width, block.top, block.sum);
  }

  void mask(const ForwardScratch& w, const Lanes& lanes, int width, const int32_t* segments, int64_t j0,
            int n) const {
    if (general_) {
      const bool added = load_bias_and_mask(w.add, width, p_, lanes, j0, n);
      FinishScores(w.s, width, lanes, p_, p_.scale, j0, n, added ? w.add : nullptr, segments, nullptr);
      return;
    }
    // Keys in [lo_max, hi_min) are seen by every lane: only those before and after need the test.
    const int64_t end = j0 + n;
    const int64_t before = std::clamp(lanes.bounds.lo_max, j0, end),
                  after = std::clamp(lanes.bounds.hi_min, before, end);
    MaskIntervals(w.s, width, lanes, j0, static_cast<int>(before - j0));
    MaskIntervals(w.s + (after - j0) * width, width, lanes, after, static_cast<int>(end - after));
  }

  const ForwardParams& p_;
  const Launch& launch_;
  const ForwardSizes sizes_;
  const int64_t worker_bytes_;
  const bool general_;
};

inline Status Forward(const Kernel&, const ForwardParams& p, const Schedule& schedule, const Launch& launch) {
  return ForwardRun<Fp32Products>(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
