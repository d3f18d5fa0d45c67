// Standard attention: S = Q K^T, P = softmax(S), O = P V, one step after the other with the score matrix of a
// head in memory. What the fused kernel is measured against; the same products, so that nothing but the
// memory differs. Task = (sequence, query head).

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

class StandardRun {
 public:
  StandardRun(const ForwardParams& p, const Schedule& schedule, const Launch& launch)
      : p_(p),
        launch_(launch),
        sizes_(p.seqlen_q, p.seqlen_kv, p.head_dim, p.head_dim_v, schedule),
        worker_bytes_(standard_worker_bytes(sizes_)),
        general_(needs_general_scores(p)) {}

  Status run() {
    launch_.executor->run(p_.batch * p_.heads_q, sizes_.workers, [this](int64_t index, int worker) {
      Arena arena(static_cast<std::byte*>(launch_.scratch) + worker * worker_bytes_, worker_bytes_);
      head(StandardScratch(arena, sizes_), index / p_.heads_q, index % p_.heads_q);
    });
    return {};
  }

 private:
  void head(const StandardScratch& w, int64_t b, int64_t h) const {
    const Sequence s = sequence_of(p_, b);
    const int64_t m = sizes_.tile_m, blocks = (s.rows_q + m - 1) / m;
    const int n = static_cast<int>(s.kv_last - s.kv_first);
    int64_t k_stride = 0, v_stride = 0;
    const float *k = nullptr, *v = nullptr;
    if (n > 0) {
      const int64_t row0 = s.kv_begin + s.kv_first, head_kv = h / p_.group(), slot = cache_slot(p_, b);
      k = RowsAsFloat(p_.k, slot, head_kv, row0, n, p_.head_dim, sizes_.pitch, w.k_rows, true, &k_stride);
      v = RowsAsFloat(p_.v, slot, head_kv, row0, n, p_.head_dim_v, sizes_.pitch, w.v_rows, true, &v_stride);
    }
    for (int64_t i = 0; i < blocks; ++i) {
      ForwardBlock block = block_at(w, i);
      fill_lanes(*block.lanes, p_, s, b, h, 1, i * m, static_cast<int>(std::min(m, s.rows_q - i * m)));
      PackQueries(block, p_, general_ ? 1.0f : sign_of(p_), w.rows, sizes_.pitch);
      BeginSoftmax(block);
      ClearOutput(block, p_.head_dim_v);
      ScoreProduct(n, static_cast<int>(p_.head_dim), k, k_stride, block.q_t, scores(w, i), m, block.width,
                   nullptr);
    }
    for (int64_t i = 0; i < blocks; ++i) {
      if (general_)
        softmax<true>(w, s, i, n);
      else
        softmax<false>(w, s, i, n);
    }
    for (int64_t i = 0; i < blocks; ++i) {
      const ForwardBlock block = block_at(w, i);
      const int dv = static_cast<int>(p_.head_dim_v);
      Panels<false, Out::kAccumulate>(dv, n, v, v_stride, scores(w, i), m, block.o_t, m, block.width);
      if (!AllFinite(block.o_t, m * dv)) {
        // A hidden key's V may hold NaN: its weight, -0, is passed over.
        std::memset(block.o_t, 0, static_cast<size_t>(m * dv) * sizeof(float));
        SeenProduct(dv, n, v, v_stride, scores(w, i), m, block.o_t, block.width);
      }
      WriteOutput(block, p_, general_, w.tile_top, w.rows, sizes_.pitch);
    }
  }

  ForwardBlock block_at(const StandardScratch& w, int64_t i) const {
    const int64_t m = sizes_.tile_m;
    return {w.lanes + i,
            w.q_t + i * m * p_.head_dim,
            w.o_t + i * m * p_.head_dim_v,
            w.top + i * m,
            w.sum + i * m,
            static_cast<int>(m),
            false,
            false};
  }
  float* scores(const StandardScratch& w, int64_t i) const {
    return w.scores + i * sizes_.tile_m * sizes_.seqlen_kv;
  }

  // All keys [kv_first, kv_first + n) of block i.
  template <bool kNatural>
  void softmax(const StandardScratch& w, const Sequence& s, int64_t i, int n) const {
    const ForwardBlock block = block_at(w, i);
    const int m = sizes_.tile_m;
    for (int j = 0; j < n; j += sizes_.tile_n) {
      const int count = std::min(sizes_.tile_n, n - j);
      float* tile = scores(w, i) + static_cast<int64_t>(j) * m;
      const int64_t j0 = s.kv_first + j;
      if (kNatural) {
        const bool segmented = p_.segment_ids_kv.data != nullptr;
        if (segmented) load_key_segments(w.segments, p_, s, block.lanes->b, j0, count);
        const bool added = load_bias_and_mask(w.add, m, p_, *block.lanes, j0, count);
        FinishScores(tile, m, *block.lanes, p_, p_.scale, j0, count, added ? w.add : nullptr,
                     segmented ? w.segments : nullptr, nullptr);
      } else if (block.lanes->bounds.classify(j0, j0 + count) != TileClass::full) {
        MaskIntervals(tile, m, *block.lanes, j0, count);
      }
    }
    ColumnMaxima(scores(w, i), m, n, m, block.top);
    ExponentialsMarked<kNatural>(factor_of(p_), scores(w, i), m, n, m, block.top, block.sum);
    if (!p_.dropout_threshold) return;
    for (int j = 0; j < n; j += sizes_.tile_n) {
      const int count = std::min(sizes_.tile_n, n - j);
      LoadDropout(w.keep, m, p_, *block.lanes, s.kv_first + j, count);
      Multiply(scores(w, i) + static_cast<int64_t>(j) * m, w.keep, static_cast<int64_t>(count) * m);
    }
  }

  const ForwardParams& p_;
  const Launch& launch_;
  const StandardSizes sizes_;
  const int64_t worker_bytes_;
  const bool general_;
};

inline Status StandardForward(const Kernel&, const ForwardParams& p, const Schedule& schedule,
                              const Launch& launch) {
  return StandardRun(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
