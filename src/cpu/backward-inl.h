// CPU backward, recomputed: P comes back from q, k and lse; neither P nor dP reaches memory beyond one tile.
//
// Task = (sequence, key head, split of its keys), on one worker. For each query head of the group the rows
// are packed once; then, key tile by key tile and q block by q block:
//   dV += P^T dO,  dK += dS^T Q  (lanes over the head dim)     dQ^T += K^T dS^T  (lanes over queries)
// dK and dV belong to the task alone, so query heads of a group and all q blocks add up in a fixed order
// without atomics. dQ belongs to it too where keys are not split; else each split writes its part and a
// second phase adds the parts in ascending order. Memory: O(seqlen) a worker (BackwardScratch).

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

class BackwardRun {
 public:
  BackwardRun(const BackwardParams& p, const Schedule& schedule, const Launch& launch)
      : p_(p),
        launch_(launch),
        sizes_(p.batch, p.heads_q, p.heads_kv, p.seqlen_q, p.seqlen_kv, p.total_q, p.head_dim, p.head_dim_v,
               p.dsinks != nullptr, schedule),
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

  QueryBlock block_at(const BackwardScratch& w, int64_t index) const {
    const int64_t m = sizes_.tile_m;
    return {w.lanes[index],
            w.q_t + index * m * p_.head_dim,
            w.dout_t + index * m * p_.head_dim_v,
            w.q + index * m * sizes_.pitch_qk,
            w.dout + index * m * sizes_.pitch_v,
            w.lse + index * m,
            w.delta + index * m};
  }
  TileBuffers buffers(const BackwardScratch& w) const { return {w.p, w.ds, w.add, w.slope, w.keep}; }

  // Keys [j0, j0 + n) of a key head as fp32 rows: in place, or brought together where several q blocks
  // `share` them. Also says whether a row
  // of K holds a non-finite value: such a row must not meet a zero of dS^T, where no lane sees it.
  KeyTile load_keys(const BackwardScratch& w, const Sequence& s, int64_t b, int64_t head, int64_t j0, int n,
                    bool share, SegmentBounds* segment_bounds, bool* finite) const {
    KeyTile tile{};
    const int64_t row0 = s.kv_begin + j0;
    tile.k =
        RowsAsFloat(p_.k, b, head, row0, n, p_.head_dim, sizes_.pitch_qk, w.k_tile, share, &tile.k_stride);
    tile.v =
        RowsAsFloat(p_.v, b, head, row0, n, p_.head_dim_v, sizes_.pitch_v, w.v_tile, share, &tile.v_stride);
    if (p_.segment_ids_kv.data) {
      *segment_bounds = load_key_segments(w.segments, p_, s, b, j0, n);
      tile.segments = w.segments;
    }
    *finite = true;
    for (int j = 0; j < n && *finite; ++j) *finite = AllFinite(tile.k + j * tile.k_stride, p_.head_dim);
    return tile;
  }

  void key_head(int64_t b, int64_t head_kv, int64_t split, int worker) {
    const BackwardScratch w = scratch(worker);
    const Sequence s = sequence_of(p_, b);
    const int64_t c0 = std::min(split * sizes_.chunk, s.rows_kv), c1 = std::min(c0 + sizes_.chunk, s.rows_kv);
    std::fill_n(w.dk, (c1 - c0) * sizes_.pitch_qk, 0.0f);
    std::fill_n(w.dv, (c1 - c0) * sizes_.pitch_v, 0.0f);
    for (int64_t g = 0; g < p_.group(); ++g)
      query_head(w, s, b, head_kv, head_kv * p_.group() + g, split, c0, c1);
    for (int64_t j = c0; j < c1; ++j) {
      write_row(p_.dk, b, head_kv, s.kv_begin + j, w.dk + (j - c0) * sizes_.pitch_qk, p_.head_dim, p_.scale);
      write_row(p_.dv, b, head_kv, s.kv_begin + j, w.dv + (j - c0) * sizes_.pitch_v, p_.head_dim_v, 1.0f);
    }
  }

  void query_head(const BackwardScratch& w, const Sequence& s, int64_t b, int64_t head_kv, int64_t head,
                  int64_t split, int64_t c0, int64_t c1) {
    const int64_t m = sizes_.tile_m;
    const int64_t blocks = (s.len_q + m - 1) / m;
    for (int64_t i = 0; i < blocks; ++i) {
      QueryBlock block = block_at(w, i);
      const int count = static_cast<int>(std::min(m, s.len_q - i * m));
      PackQueryBlock(block, p_, s, b, head, i * m, count, sizes_.tile_m, sizes_.pitch_qk, sizes_.pitch_v,
                     w.row);
    }
    std::fill_n(w.dq_t, blocks * m * p_.head_dim, 0.0f);
    for (int64_t j0 = c0; j0 < c1; j0 += sizes_.tile_n) {
      const int64_t j1 = std::min({j0 + sizes_.tile_n, c1, s.kv_last});
      if (std::max(j0, s.kv_first) < j1)
        key_tile(w, s, b, head_kv, blocks, c0, j0, static_cast<int>(j1 - j0));
    }
    if (p_.dq.data) write_dq(w, s, b, head, split);
    if (p_.dsinks && split == 0) {
      const float sink = p_.sinks[head * p_.sinks_stride];
      double sum = 0.0;
      for (int64_t i = 0; i < s.len_q; ++i) {
        const float lse = p_.lse.data[b * p_.lse.batch_stride + head * p_.lse.head_stride +
                                      (s.q_begin + i) * p_.lse.row_stride];
        if (lse == kNegativeInfinity || sink == kNegativeInfinity) continue;
        sum -= std::exp(static_cast<double>(sink) - lse) * w.delta[i];
      }
      shared_.sink_parts[b * p_.heads_q + head] = sum;
    }
  }

  // All q blocks of a head against keys [j0, j0 + n).
  void key_tile(const BackwardScratch& w, const Sequence& s, int64_t b, int64_t head_kv, int64_t blocks,
                int64_t c0, int64_t j0, int n) {
    const int m = sizes_.tile_m;
    const int d_qk = static_cast<int>(p_.head_dim);
    KeyTile keys{};
    SegmentBounds segment_bounds;
    bool loaded = false, finite = true;
    for (int64_t i = 0; i < blocks; ++i) {
      const QueryBlock block = block_at(w, i);
      TileClass tile_class = block.lanes.bounds.classify(j0, j0 + n);
      if (tile_class == TileClass::skip) continue;
      if (!loaded) {
        keys = load_keys(w, s, b, head_kv, j0, n, blocks > 1, &segment_bounds, &finite);
        loaded = true;
      }
      if (keys.segments) {
        tile_class = classify_segments(tile_class, block.lanes.segments, segment_bounds);
        if (tile_class == TileClass::skip) continue;
      }
      const int64_t a0 = std::max(j0, block.lanes.bounds.lo_min),
                    a1 = std::min(j0 + n, block.lanes.bounds.hi_max);
      const int count = static_cast<int>(a1 - a0);
      const Cut cut = cut_tile(block, tile_class, a0, count, m);
      TileGradients(p_, block, keys, j0, a0, count, tile_class, cut, general_, ScoreStage::product, m,
                    buffers(w));
      for (int c = 0; c < cut.count; ++c) {
        const Piece& piece = cut.pieces[c];
        const int rows = piece.last - piece.first, x = piece.begin * kLanes, lanes = piece.end * kLanes - x;
        const int64_t at = static_cast<int64_t>(piece.first) * m + x, row = a0 - c0 + piece.first;
        if (p_.dv.data)
          Panels<true, Out::kAccumulate>(rows, lanes, w.p + at, m, block.dout + x * sizes_.pitch_v,
                                         sizes_.pitch_v, w.dv + row * sizes_.pitch_v, sizes_.pitch_v,
                                         static_cast<int>(sizes_.pitch_v));
        if (p_.dk.data)
          Panels<true, Out::kAccumulate>(rows, lanes, w.ds + at, m, block.q + x * sizes_.pitch_qk,
                                         sizes_.pitch_qk, w.dk + row * sizes_.pitch_qk, sizes_.pitch_qk,
                                         static_cast<int>(sizes_.pitch_qk));
      }
      if (!p_.dq.data) continue;
      const float* k = keys.k + (a0 - j0) * keys.k_stride;
      int64_t k_stride = keys.k_stride;
      if (!finite) {
        k = clear_unseen(w, k, k_stride, count);
        k_stride = sizes_.pitch_qk;
      }
      for (int c = 0; c < cut.count; ++c) {
        const Piece& piece = cut.pieces[c];
        const int x = piece.begin * kLanes;
        Panels<false, Out::kAccumulate>(d_qk, piece.last - piece.first, k + piece.first * k_stride, k_stride,
                                        w.ds + static_cast<int64_t>(piece.first) * m + x, m,
                                        w.dq_t + i * m * d_qk + x, m, (piece.end - piece.begin) * kLanes);
      }
    }
  }

  // K rows with those cleared that no lane of the tile sees (their P^T and dS^T rows are zero): 0 * NaN is
  // NaN.
  const float* clear_unseen(const BackwardScratch& w, const float* k, int64_t k_stride, int n) const {
    for (int j = 0; j < n; ++j) {
      bool seen = false;
      for (int r = 0; r < sizes_.tile_m && !seen; ++r)
        seen = w.ds[j * sizes_.tile_m + r] != 0.0f || w.p[j * sizes_.tile_m + r] != 0.0f;
      float* to = w.k_clear + j * sizes_.pitch_qk;
      if (seen)
        std::memcpy(to, k + j * k_stride, static_cast<size_t>(p_.head_dim) * sizeof(float));
      else
        std::fill_n(to, p_.head_dim, 0.0f);
    }
    return w.k_clear;
  }

  void write_row(const RowTensor& t, int64_t b, int64_t head, int64_t row, const float* values, int64_t n,
                 float scale) const {
    if (!t.data) return;
    const int64_t at = b * t.batch_stride + head * t.head_stride + row * t.row_stride;
    if (!p_.accumulate) {
      StoreRow(t, at, values, n, scale, false);
      return;
    }
    for (int64_t c = 0; c < n; ++c) {
      const float value = values[c] * scale;
      store_element(t.data, t.dtype, at + c, load_element(t.data, t.dtype, at + c) + value);
    }
  }

  void write_dq(const BackwardScratch& w, const Sequence& s, int64_t b, int64_t head, int64_t split) const {
    const int64_t m = sizes_.tile_m, d = p_.head_dim;
    for (int64_t first = 0; first < s.rows_q; first += m) {
      const int64_t count = std::min(m, s.rows_q - first);
      // The block's pack of Q has done its work: its rows take dQ.
      float* rows = w.q + first * sizes_.pitch_qk;
      Transpose<true>(w.dq_t + first * d, m, static_cast<int>(d), static_cast<int>(m), rows, sizes_.pitch_qk,
                      1.0f);
      for (int64_t r = 0; r < count; ++r) {
        float* row = rows + r * sizes_.pitch_qk;
        if (first + r >= s.len_q) std::fill_n(row, d, 0.0f);
        if (sizes_.num_splits == 1)
          write_row(p_.dq, b, head, s.q_begin + first + r, row, d, p_.scale);
        else
          std::memcpy(part_row(split, b, head, s.q_begin + first + r), row,
                      static_cast<size_t>(d) * sizeof(float));
      }
    }
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
  return BackwardRun(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
