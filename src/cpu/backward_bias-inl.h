// dbias: one owner a tile of the bias, which loops over everything that the bias repeats over (sequences,
// heads, query or key tiles), recomputes dS there and adds it up in its own buffer in a fixed order, then
// writes once. No N^2 buffer beside dbias itself, no atomics. Costs two products more than the main pass: S^T
// and dP^T again.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

template <class Products>
inline void BackwardRun<Products>::bias_gradient() {
  const int64_t q_tiles = p_.bias_shape[2] == 1 ? 1 : (sizes_.seqlen_q + sizes_.tile_m - 1) / sizes_.tile_m;
  const int64_t kv_tiles = p_.bias_shape[3] == 1 ? 1 : (sizes_.seqlen_kv + sizes_.tile_n - 1) / sizes_.tile_n;
  const int64_t tiles = p_.bias_shape[0] * p_.bias_shape[1] * q_tiles * kv_tiles;
  launch_.executor->run(tiles, sizes_.workers, [&, this](int64_t index, int worker) {
    const int64_t kv_tile = index % kv_tiles, q_tile = index / kv_tiles % q_tiles;
    const int64_t head = index / (kv_tiles * q_tiles) % p_.bias_shape[1];
    bias_tile(scratch(worker), index / (kv_tiles * q_tiles * p_.bias_shape[1]), head, q_tile, kv_tile);
  });
}

template <class Products>
inline void BackwardRun<Products>::bias_tile(const BackwardScratch& w, int64_t bias_b, int64_t bias_h,
                                             int64_t q_tile, int64_t kv_tile) {
  const int64_t m = sizes_.tile_m, n = sizes_.tile_n;
  const bool one_b = p_.bias_shape[0] == 1, one_h = p_.bias_shape[1] == 1;
  const bool one_q = p_.bias_shape[2] == 1, one_kv = p_.bias_shape[3] == 1;
  std::fill_n(w.bias_sum, n * m, 0.0f);
  for (int64_t b = one_b ? 0 : bias_b; b < (one_b ? p_.batch : bias_b + 1); ++b) {
    const Sequence s = sequence_of(p_, b);
    for (int64_t h = one_h ? 0 : bias_h; h < (one_h ? p_.heads_q : bias_h + 1); ++h) {
      for (int64_t i0 = one_q ? 0 : q_tile * m; i0 < (one_q ? s.len_q : std::min(s.len_q, (q_tile + 1) * m));
           i0 += m) {
        QueryBlock block = block_at(w, 0, m);
        const int rows = static_cast<int>(std::min(m, s.len_q - i0));
        fill_lanes(block.lanes, p_, s, b, h, 1, i0, rows);
        Products::Pack(block, p_, s, b, h, i0, rows, sizes_, w.row);
        const int64_t j_end = one_kv ? s.kv_last : std::min(s.kv_last, (kv_tile + 1) * n);
        for (int64_t j0 = one_kv ? 0 : kv_tile * n; j0 < j_end; j0 += n) {
          const int64_t a0 = std::max(j0, block.lanes.bounds.lo_min);
          const int64_t a1 = std::min({j0 + n, j_end, block.lanes.bounds.hi_max});
          if (a0 >= a1) continue;
          SegmentBounds segment_bounds;
          bool finite = true;
          const int count = static_cast<int>(a1 - a0);
          const auto keys = load_keys(w, s, b, h / p_.group(), a0, count, false, &segment_bounds, &finite);
          const TileClass tile_class = block.lanes.bounds.classify(a0, a1);
          if (keys.segments &&
              classify_segments(tile_class, block.lanes.segments, segment_bounds) == TileClass::skip)
            continue;
          const Cut cut = cut_tile(block, TileClass::partial, a0, count, kUnit);
          TileGradients<Products>(p_, block, keys, a0, a0, count, TileClass::partial, cut, general_,
                                  ScoreStage::biased, buffers(w), nullptr);
          for (int64_t at = 0; at < count * m; ++at) w.bias_sum[(a0 - j0) * m + at] += w.ds[at];
        }
      }
    }
  }
  const int64_t i0 = one_q ? 0 : q_tile * m, j0 = one_kv ? 0 : kv_tile * n;
  write_bias_tile(w, bias_b, bias_h, i0, one_q ? 1 : std::min(m, sizes_.seqlen_q - i0), j0,
                  one_kv ? 1 : std::min(n, sizes_.seqlen_kv - j0));
}

// Sums what is left of the tile over repeated queries (lanes) and repeated keys (rows).
template <class Products>
inline void BackwardRun<Products>::write_bias_tile(const BackwardScratch& w, int64_t bias_b, int64_t bias_h,
                                                   int64_t i0, int64_t rows, int64_t j0, int64_t keys) const {
  const int64_t m = sizes_.tile_m, n = sizes_.tile_n;
  const bool one_q = p_.bias_shape[2] == 1, one_kv = p_.bias_shape[3] == 1;
  const int64_t base = bias_b * p_.dbias.batch_stride + bias_h * p_.dbias.head_stride;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < keys; ++j) {
      float sum = 0.0f;
      for (int64_t r = one_q ? 0 : i; r < (one_q ? m : i + 1); ++r)
        for (int64_t k = one_kv ? 0 : j; k < (one_kv ? n : j + 1); ++k) sum += w.bias_sum[k * m + r];
      store_element(p_.dbias.data, p_.dbias.dtype,
                    base + (i0 + i) * p_.dbias.row_stride + (j0 + j) * p_.dbias.key_stride, sum);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
