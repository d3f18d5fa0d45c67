// The backward's products by dots of bf16 pairs, as pair_products-inl.h does the forward's:
//
//   S^T = K Q^T, dP^T = V dO^T     pairs of dims
//   dV += P^T dO, dK += dS^T Q     pairs of neighbouring lanes: P^T and dS^T rounded row by row, Q and dO
//                                  interleaved by rows once a block
//   dQ^T += K^T dS^T               pairs of keys (2 i, 2 i + 1): K interleaved once a key tile, dS^T by
//   columns
//
// P and dS are rounded to bf16 before their products; everything between is fp32 and shared.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Row j of n: `width` floats at from + j * ld become bf16 in their order at to + j * ld. In place too.
inline HWY_NOINLINE void RoundRows(const float* from, float* to, int64_t ld, int width, int n) {
  const D d;
  for (int j = 0; j < n; ++j, from += ld, to += ld) {
    for (int x = 0; x < width; x += 2 * kLanes) {
      const V lower = hn::Load(d, from + x);
      const V upper = x + kLanes < width ? hn::Load(d, from + x + kLanes) : hn::Zero(d);
      hn::Store(RoundToHalves(lower, upper), DPair(), reinterpret_cast<Pair*>(to) + x / 2);
    }
  }
}

// True where no element of a row of whole vectors is NaN or infinite.
inline bool AllFinite(const Pair* row, int64_t pairs) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 bad = 0;
  for (int64_t i = 0; i < pairs; i += kLanes)
    bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_load_si512(row + i), exponent), exponent);
  return bad == 0;
}

struct PairGradients {
  using Element = Pair;
  static constexpr int kUnit = 2;

  static void Pack(QueryBlock& block, const BackwardParams& p, const Sequence& sequence, int64_t b,
                   int64_t head, int64_t first, int count, const BackwardSizes& sizes, float* row_buffer) {
    const uint16_t *q[kMaxLanes], *dout[kMaxLanes];
    float* dout_row = block.dout;  // until it is packed
    for (int r = 0; r < block.width; ++r) {
      q[r] = dout[r] = nullptr;
      block.lse[r] = -kNegativeInfinity;
      block.delta[r] = 0.0f;
      if (r >= count) continue;
      const int64_t row = sequence.q_begin + first + r, dout_at = p.dout.at(b, row, head);
      if (!p.delta.data) ConvertRow(dout_row, p.dout, dout_at, p.head_dim_v);
      if (!RowStatistics(block, p, b, row, head, r, dout_row, row_buffer)) continue;
      q[r] = static_cast<const uint16_t*>(p.q.data) + p.q.at(b, row, head);
      dout[r] = static_cast<const uint16_t*>(p.dout.data) + dout_at;
    }
    PackRows(q, block.width, p.head_dim, sizes.pitch_qk, block.q, block.q_t);
    PackRows(dout, block.width, p.head_dim_v, sizes.pitch_v, block.dout, block.dout_t);
  }

  // k_units: pairs of keys from the first on.
  static KeyTile<Pair> Keys(const BackwardParams& p, const BackwardScratch& w, const BackwardSizes& sizes,
                            int64_t b, int64_t head, int64_t row0, int n, bool, bool* finite) {
    KeyTile<Pair> tile{};
    auto *k = reinterpret_cast<Pair*>(w.k_tile), *v = reinterpret_cast<Pair*>(w.v_tile);
    tile.k = k;
    tile.v = v;
    tile.k_stride = PairProducts::pitch(p.head_dim);
    tile.v_stride = PairProducts::pitch(p.head_dim_v);
    *finite = true;
    for (int j = 0; j < n; ++j) {
      CopyRow(k + j * tile.k_stride, row_of(p.k, b, row0 + j, head), p.head_dim);
      CopyRow(v + j * tile.v_stride, row_of(p.v, b, row0 + j, head), p.head_dim_v);
      *finite = *finite && AllFinite(k + j * tile.k_stride, tile.k_stride);
    }
    Interleave(p, w, sizes, nullptr, 0, n, &tile);
    return tile;
  }

  static void ClearUnseen(const BackwardParams& p, const BackwardScratch& w, const BackwardSizes& sizes,
                          const bool* seen, int first, int n, KeyTile<Pair>* tile) {
    Interleave(p, w, sizes, seen, first, n, tile);
  }

  struct Rounded {
    const Pair *p, *ds, *ds_units;
  };
  static Rounded Round(const BackwardScratch& w, int width, int64_t j0, int n) {
    RoundRows(w.p, w.p, width, width, n);
    RoundRows(w.ds, w.add, width, width, n);
    PairProducts::Weights(w.ds, width, j0, n);
    return {ElementsOf<Pair>(w.p), ElementsOf<Pair>(w.add), ElementsOf<Pair>(w.ds)};
  }

 private:
  static const uint16_t* row_of(const RowTensor& t, int64_t b, int64_t row, int64_t head) {
    return static_cast<const uint16_t*>(t.data) + t.at(b, row, head);
  }

  // Rows of a block (null: zeros) in pairs of dims, transposed, and in pairs of rows.
  static void PackRows(const uint16_t* const* rows, int width, int64_t dim, int64_t pitch, float* by_rows,
                       float* transposed) {
    const int64_t ld = PairProducts::pitch(dim);
    for (int r = 0; r < width; ++r) {
      Pair* to = reinterpret_cast<Pair*>(by_rows) + r * ld;
      if (rows[r])
        CopyRow(to, rows[r], dim);
      else
        std::fill_n(to, ld, Pair{0});
    }
    TransposePairs(by_rows, ld, width, transposed);
    for (int r = 0; r < width; r += 2)
      InterleaveRows(reinterpret_cast<Pair*>(by_rows) + r / 2 * pitch, rows[r], rows[r + 1], dim);
  }

  // The tile's rows [first, first + n) of K in pairs of keys; those that are not `seen` (or null) as zeros.
  // What is cleared lies behind what is not: other blocks still want that.
  static void Interleave(const BackwardParams& p, const BackwardScratch& w, const BackwardSizes& sizes,
                         const bool* seen, int first, int n, KeyTile<Pair>* tile) {
    auto* to = reinterpret_cast<Pair*>(w.k_clear) + (seen ? sizes.tile_n / 2 * sizes.pitch_qk : 0);
    const int end = first + n;
    const auto row = [&](int j) -> const uint16_t* {
      if (j < first || j >= end || (seen && !seen[j - first])) return nullptr;
      return reinterpret_cast<const uint16_t*>(tile->k + j * tile->k_stride);
    };
    for (int j = first / 2 * 2; j < end; j += 2)
      InterleaveRows(to + j / 2 * sizes.pitch_qk, row(j), row(j + 1), p.head_dim);
    tile->k_units = to;
    tile->units_stride = sizes.pitch_qk;
  }
};

inline Status PairBackward(const Kernel&, const BackwardParams& p, const Schedule& schedule,
                           const Launch& launch) {
  return BackwardRun<PairGradients>(p, schedule, launch).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
