// CPU backward, recomputed: P comes back from q, k and lse; neither P nor dP reaches memory beyond one tile.
//
// Task = (sequence, key head, split of its keys), on one worker. For each query head of the group and each
// chunk of its q blocks that L2 holds, key tile by key tile and q block by q block, whose rows are packed
// when they are first needed:
//   dV += P^T dO,  dK += dS^T Q  (lanes over the head dim)     dQ^T += K^T dS^T  (lanes over queries)
// dK and dV belong to the task alone, so query heads of a group and all q blocks add up in a fixed order
// without atomics. dQ belongs to it too where keys are not split; else each split writes its part and a
// second phase adds the parts in ascending order. Memory: O(seqlen) a worker (BackwardScratch).

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

template <class Products>
class BackwardRun {
  using Element = typename Products::Element;
  static constexpr int kUnit = Products::kUnit;

 public:
  BackwardRun(const BackwardParams& p, const Schedule& schedule, const Launch& launch)
      : p_(p),
        launch_(launch),
        sizes_(p.batch, p.heads_q, p.heads_kv, p.seqlen_q, p.seqlen_kv, p.cu_seqlens_q.data ? p.total_q : -1,
               p.head_dim, p.head_dim_v, p.dsinks != nullptr, schedule),
        general_(needs_general_scores(p)),
        arena_(launch.scratch, launch.scratch_bytes),
        shared_(arena_, sizes_),
        worker_base_(static_cast<std::byte*>(launch.scratch) + multiple_of(256, arena_.used())),
        worker_bytes_(worker_bytes(sizes_)) {}

  Status run() {
    const int64_t tasks = p_.batch * p_.heads_kv * sizes_.num_splits;
    launch_.executor->run(tasks, sizes_.workers, [this](int64_t index, int worker) {
      const int64_t split = index % sizes_.num_splits, head = index / sizes_.num_splits;
      key_head(head / p_.heads_kv, head % p_.heads_kv, split, worker);
    });
    if (sizes_.num_splits > 1 && p_.dq.data) {
      launch_.executor->run(p_.batch * p_.heads_q, sizes_.workers, [this](int64_t index, int) {
        add_dq_parts(index / p_.heads_q, index % p_.heads_q);
      });
    }
    if (p_.dsinks) {
      for (int64_t h = 0; h < p_.heads_q; ++h) {
        double sum = 0.0;
        for (int64_t b = 0; b < p_.batch; ++b) sum += shared_.sink_parts[b * p_.heads_q + h];
        p_.dsinks[h * p_.dsinks_stride] = static_cast<float>(sum);
      }
    }
    if (p_.dbias.data) bias_gradient();
    return {};
  }

 private:
  BackwardScratch scratch(int worker) const {
    Arena arena(worker_base_ + worker * worker_bytes_, worker_bytes_);
    return BackwardScratch(arena, sizes_);
  }

  QueryBlock block_at(const BackwardScratch& w, int64_t index, int64_t rows) const {
    const int64_t m = sizes_.tile_m;
    return {w.lanes[index],
            static_cast<int>(multiple_of(kLanes, rows)),
            w.q_t + index * m * sizes_.pitch_qk,
            w.dout_t + index * m * sizes_.pitch_v,
            w.q + index * m * sizes_.pitch_qk,
            w.dout + index * m * sizes_.pitch_v,
            w.lse + index * m,
            w.delta + index * m};
  }
  TileBuffers buffers(const BackwardScratch& w) const { return {w.p, w.ds, w.add, w.slope, w.keep}; }

  // Keys [j0, j0 + n) of a key head. Also says whether a row of K holds a non-finite value: such a row must
  // not meet a zero of dS^T, where no lane sees it.
  KeyTile<Element> load_keys(const BackwardScratch& w, const Sequence& s, int64_t b, int64_t head, int64_t j0,
                             int n, bool share, SegmentBounds* segment_bounds, bool* finite) const {
    KeyTile<Element> tile = Products::Keys(p_, w, sizes_, b, head, s.kv_begin + j0, n, share, finite);
    if (p_.segment_ids_kv.data) {
      *segment_bounds = load_key_segments(w.segments, p_, s, b, j0, n);
      tile.segments = w.segments;
    }
    return tile;
  }

  // A chunk of the q blocks of one head against the keys [c0, c1) of its key head.
  struct QueryChunk {
    const BackwardScratch& w;
    const Sequence& s;
    int64_t b, head_kv, head, split, c0, c1;
    int64_t first;   // row of q
    int64_t blocks;  // of tile_m rows
    bool last;       // of the group's rows: dK and dV are whole after it
  };

  void key_head(int64_t b, int64_t head_kv, int64_t split, int worker) {
    const BackwardScratch w = scratch(worker);
    const Sequence s = sequence_of(p_, b);
    const int64_t c0 = std::min(split * sizes_.split_keys, s.rows_kv),
                  c1 = std::min(c0 + sizes_.split_keys, s.rows_kv);
    std::fill_n(w.dk, (c1 - c0) * sizes_.pitch_qk, 0.0f);
    std::fill_n(w.dv, (c1 - c0) * sizes_.pitch_v, 0.0f);
    const int64_t m = sizes_.tile_m, rows = sizes_.blocks * m;
    for (int64_t g = 0; g < p_.group(); ++g) {
      const int64_t head = head_kv * p_.group() + g;
      double sink_part = 0.0;
      int64_t first = 0;
      do {
        const int64_t left = s.len_q - first, blocks = std::min(sizes_.blocks, (left + m - 1) / m);
        sink_part += query_chunk(
            {w, s, b, head_kv, head, split, c0, c1, first, blocks, g + 1 == p_.group() && left <= rows});
        first += rows;
      } while (first < s.len_q);
      if (p_.dsinks && split == 0) shared_.sink_parts[b * p_.heads_q + head] = sink_part;
      write_dq_padding(w, s, b, head, split);
    }
  }

  QueryBlock block_of(const QueryChunk& t, int64_t i) const {
    return block_at(t.w, i, std::min<int64_t>(sizes_.tile_m, t.s.len_q - row_of(t, i)));
  }
  int64_t row_of(const QueryChunk& t, int64_t i) const { return t.first + i * sizes_.tile_m; }

  void pack(const QueryChunk& t, int64_t i) const {
    QueryBlock block = block_of(t, i);
    Products::Pack(block, p_, t.s, t.b, t.head, row_of(t, i), block.lanes.count, sizes_, t.w.row);
    t.w.state[i] = BlockState::packed;
  }

  // Returns the part of the rows in the gradient of the head's sink.
  double query_chunk(const QueryChunk& t) {
    const BackwardScratch& w = t.w;
    const int64_t m = sizes_.tile_m;
    for (int64_t i = 0; i < t.blocks; ++i) {
      const int64_t row = row_of(t, i);
      fill_lanes(w.lanes[i], p_, t.s, t.b, t.head, 1, row, static_cast<int>(std::min(m, t.s.len_q - row)));
      w.state[i] = BlockState::untouched;
    }
    std::fill_n(w.dq_t, t.blocks * m * p_.head_dim, 0.0f);
    for (int64_t j0 = t.c0; j0 < t.c1; j0 += sizes_.tile_n) {
      const int64_t j1 = std::min({j0 + sizes_.tile_n, t.c1, t.s.kv_last});
      if (std::max(j0, t.s.kv_first) < j1) key_tile(t, j0, static_cast<int>(j1 - j0));
      if (t.last) write_keys(t, j0, std::min(j0 + sizes_.tile_n, t.c1));
    }
    const double sink_part = p_.dsinks && t.split == 0 ? sink_gradient(t) : 0.0;
    for (int64_t i = 0; i < t.blocks; ++i)
      if (w.state[i] != BlockState::written) write_dq(t, i);
    return sink_part;
  }

  double sink_gradient(const QueryChunk& t) const {
    for (int64_t i = 0; i < t.blocks; ++i)
      if (t.w.state[i] == BlockState::untouched) pack(t, i);  // for its delta
    const float sink = p_.sinks[t.head * p_.sinks_stride];
    const int64_t rows = std::min(t.blocks * sizes_.tile_m, t.s.len_q - t.first);
    double sum = 0.0;
    for (int64_t i = 0; i < rows; ++i) {
      const float lse = p_.lse.at(t.b, t.s.q_begin + t.first + i, t.head);
      if (lse == kNegativeInfinity || sink == kNegativeInfinity) continue;
      sum -= std::exp(static_cast<double>(sink) - lse) * t.w.delta[i];
    }
    return sum;
  }

  // All q blocks of a chunk against keys [j0, j0 + n).
  void key_tile(const QueryChunk& t, int64_t j0, int n) {
    const BackwardScratch& w = t.w;
    const int d_qk = static_cast<int>(p_.head_dim), d_v = static_cast<int>(p_.head_dim_v);
    KeyTile<Element> keys{};
    SegmentBounds segment_bounds;
    bool loaded = false, finite = true;
    Ahead ahead;
    const int64_t next = j0 + sizes_.tile_n, next_end = std::min({next + sizes_.tile_n, t.c1, t.s.kv_last});
    ask_for_keys(ahead, Ahead::kOwn, p_.k, d_qk, t, next, next_end);
    ask_for_keys(ahead, Ahead::kOwn + 1, p_.v, d_v, t, next, next_end);
    if (t.last) {
      ask_for_keys(ahead, Ahead::kOwn + 2, p_.dk, d_qk, t, j0, j0 + n);
      ask_for_keys(ahead, Ahead::kOwn + 3, p_.dv, d_v, t, j0, j0 + n);
    }
    const int64_t steps = (3 * n + 2 * d_qk + d_v) / kPanelRows;
    for (int64_t i = 0; i < t.blocks; ++i) {
      const QueryBlock block = block_of(t, i);
      TileClass tile_class = block.lanes.bounds.classify(j0, j0 + n);
      if (tile_class == TileClass::skip) continue;
      if (!loaded) {
        keys = load_keys(w, t.s, t.b, t.head_kv, j0, n, t.blocks > 1, &segment_bounds, &finite);
        loaded = true;
      }
      if (keys.segments) {
        tile_class = classify_segments(tile_class, block.lanes.segments, segment_bounds);
        if (tile_class == TileClass::skip) continue;
      }
      if (w.state[i] == BlockState::untouched) pack(t, i);
      const bool final = std::min(block.lanes.bounds.hi_max, t.c1) <= j0 + n;
      ask_for_queries(ahead, t, i, final);
      ahead.spread(steps, (t.blocks - i) * steps);
      const int64_t a0 = std::max(j0, block.lanes.bounds.lo_min),
                    a1 = std::min(j0 + n, block.lanes.bounds.hi_max);
      const int count = static_cast<int>(a1 - a0);
      const Cut cut = cut_tile(block, tile_class, a0, count, kUnit);
      TileGradients<Products>(p_, block, keys, j0, a0, count, tile_class, cut, general_, ScoreStage::product,
                              buffers(w), &ahead);
      KeyTile<Element> seen_keys = keys;
      if (!finite && p_.dq.data) clear_unseen(w, &seen_keys, static_cast<int>(a0 - j0), count, block.width);
      const auto rounded = Products::Round(w, block.width, a0, count);
      for (int c = 0; c < cut.count; ++c) {
        const Piece& piece = cut.pieces[c];
        const int rows = piece.last - piece.first, x = piece.begin * kLanes, lanes = piece.end * kLanes - x;
        const int64_t at = static_cast<int64_t>(piece.first) * block.width + x / kUnit,
                      row = a0 - t.c0 + piece.first;
        if (p_.dv.data)
          Panels<true, Out::kAccumulate>(rows, lanes / kUnit, rounded.p + at, block.width,
                                         ElementsOf<Element>(block.dout) + x / kUnit * sizes_.pitch_v,
                                         sizes_.pitch_v, w.dv + row * sizes_.pitch_v, sizes_.pitch_v,
                                         static_cast<int>(sizes_.pitch_v), nullptr, &ahead);
        if (p_.dk.data)
          Panels<true, Out::kAccumulate>(rows, lanes / kUnit, rounded.ds + at, block.width,
                                         ElementsOf<Element>(block.q) + x / kUnit * sizes_.pitch_qk,
                                         sizes_.pitch_qk, w.dk + row * sizes_.pitch_qk, sizes_.pitch_qk,
                                         static_cast<int>(sizes_.pitch_qk), nullptr, &ahead);
      }
      if (!p_.dq.data) continue;
      for (int c = 0; c < cut.count; ++c) {
        const Piece& piece = cut.pieces[c];
        const int x = piece.begin * kLanes;
        const int64_t begin = a0 + piece.first, end = a0 + piece.last;
        Panels<false, Out::kAccumulate>(
            d_qk, static_cast<int>((end + kUnit - 1) / kUnit - begin / kUnit),
            seen_keys.k_units + (begin / kUnit - j0 / kUnit) * seen_keys.units_stride, seen_keys.units_stride,
            rounded.ds_units + (begin / kUnit - a0 / kUnit) * block.width + x, block.width,
            w.dq_t + i * sizes_.tile_m * d_qk + x, block.width, (piece.end - piece.begin) * kLanes, nullptr,
            &ahead);
      }
      if (final) write_dq(t, i);
    }
  }

  // Rows [j0, j1) of k, v, dk or dv.
  void ask_for_keys(Ahead& ahead, int slot, const RowTensor& tensor, int64_t dim, const QueryChunk& t,
                    int64_t j0, int64_t j1) const {
    if (tensor.data && j0 < j1)
      AskForRows(ahead, slot, tensor, t.b, t.head_kv, t.s.kv_begin + j0, j1 - j0, dim);
  }

  // What follows q block i: the rows of the next one where they are still to be packed, and its own rows of
  // dq where they are `final`.
  void ask_for_queries(Ahead& ahead, const QueryChunk& t, int64_t i, bool final) const {
    const auto ask = [&](int slot, const RowTensor& tensor, int64_t block, int64_t dim) {
      const int64_t row = row_of(t, block);
      if (tensor.data)
        AskForRows(ahead, slot, tensor, t.b, t.head, t.s.q_begin + row,
                   std::min<int64_t>(sizes_.tile_m, t.s.len_q - row), dim);
    };
    if (i + 1 < t.blocks && t.w.state[i + 1] == BlockState::untouched) {
      ask(0, p_.q, i + 1, p_.head_dim);
      ask(1, p_.dout, i + 1, p_.head_dim_v);
      if (!p_.delta.data) ask(2, p_.o, i + 1, p_.head_dim_v);
    } else if (final && sizes_.num_splits == 1) {
      ask(0, p_.dq, i, p_.head_dim);
    }
  }

  // Clears rows of K that no lane of the tile sees (their P^T and dS^T rows are zero): 0 * NaN is NaN.
  void clear_unseen(const BackwardScratch& w, KeyTile<Element>* keys, int first, int n, int width) const {
    bool seen[kMaxTileKeys];
    for (int j = 0; j < n; ++j) {
      seen[j] = false;
      for (int r = 0; r < width && !seen[j]; ++r)
        seen[j] = w.ds[j * width + r] != 0.0f || w.p[j * width + r] != 0.0f;
    }
    Products::ClearUnseen(p_, w, sizes_, seen, first, n, keys);
  }

  void write_row(const RowTensor& t, int64_t b, int64_t head, int64_t row, const float* values, int64_t n,
                 float scale) const {
    if (t.data) StoreGradientRow(t, t.at(b, row, head), values, n, scale, p_.accumulate);
  }

  // Rows [j0, j1) of dK and dV.
  void write_keys(const QueryChunk& t, int64_t j0, int64_t j1) const {
    for (int64_t j = j0; j < j1; ++j) {
      const int64_t row = t.s.kv_begin + j, at = j - t.c0;
      write_row(p_.dk, t.b, t.head_kv, row, t.w.dk + at * sizes_.pitch_qk, p_.head_dim, p_.scale);
      write_row(p_.dv, t.b, t.head_kv, row, t.w.dv + at * sizes_.pitch_v, p_.head_dim_v, 1.0f);
    }
  }

  void write_dq(const QueryChunk& t, int64_t i) const {
    t.w.state[i] = BlockState::written;
    if (!p_.dq.data) return;
    const QueryBlock block = block_of(t, i);
    const int64_t m = sizes_.tile_m, d = p_.head_dim;
    // The block's pack of Q has done its work: its rows take dQ.
    Transpose<true>(t.w.dq_t + i * m * d, block.width, static_cast<int>(d), block.width, block.q,
                    sizes_.pitch_qk, ColumnFactors(1.0f));
    for (int64_t r = 0; r < block.lanes.count; ++r)
      write_dq_row(t.s, t.b, t.head, t.split, row_of(t, i) + r, block.q + r * sizes_.pitch_qk);
  }

  // Rows past q_lengths.
  void write_dq_padding(const BackwardScratch& w, const Sequence& s, int64_t b, int64_t head,
                        int64_t split) const {
    if (!p_.dq.data || s.len_q == s.rows_q) return;
    std::fill_n(w.row, p_.head_dim, 0.0f);
    for (int64_t i = s.len_q; i < s.rows_q; ++i) write_dq_row(s, b, head, split, i, w.row);
  }

  void write_dq_row(const Sequence& s, int64_t b, int64_t head, int64_t split, int64_t i,
                    const float* values) const {
    if (sizes_.num_splits == 1)
      write_row(p_.dq, b, head, s.q_begin + i, values, p_.head_dim, p_.scale);
    else
      std::memcpy(part_row(split, b, head, s.q_begin + i), values,
                  static_cast<size_t>(p_.head_dim) * sizeof(float));
  }

  float* part_row(int64_t split, int64_t b, int64_t head, int64_t row) const {
    const int64_t at = p_.cu_seqlens_q.data ? row : b * sizes_.seqlen_q + row;
    return shared_.dq_parts + ((split * p_.heads_q + head) * sizes_.rows_q + at) * p_.head_dim;
  }

  void add_dq_parts(int64_t b, int64_t head) const {
    const Sequence s = sequence_of(p_, b);
    for (int64_t i = 0; i < s.rows_q; ++i) {
      float* sum = part_row(0, b, head, s.q_begin + i);
      for (int64_t split = 1; split < sizes_.num_splits; ++split) {
        const float* part = part_row(split, b, head, s.q_begin + i);
        for (int64_t c = 0; c < p_.head_dim; ++c) sum[c] += part[c];
      }
      write_row(p_.dq, b, head, s.q_begin + i, sum, p_.head_dim, p_.scale);
    }
  }

  void bias_gradient();
  void bias_tile(const BackwardScratch& w, int64_t bias_b, int64_t bias_h, int64_t q_tile, int64_t kv_tile);
  void write_bias_tile(const BackwardScratch& w, int64_t bias_b, int64_t bias_h, int64_t i0, int64_t rows,
                       int64_t j0, int64_t keys) const;

  const BackwardParams& p_;
  const Launch& launch_;
  const BackwardSizes sizes_;
  const bool general_;
  Arena arena_;
  BackwardShared shared_;
  std::byte* worker_base_;
  int64_t worker_bytes_;
};

inline Status Backward(const Kernel&, const BackwardParams& p, const Schedule& schedule,
                       const Launch& launch) {
  return BackwardRun<Fp32Gradients>(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
