// One tile of the recomputed backward: P^T and dS^T of keys [j0, j0 + n) by the lanes of one q block.
//
//   S^T = K Q^T,  P^T = exp(S^T - lse),  dP^T = V dO^T,  dS^T = P^T o (dP^T - delta)
//
// with delta = rowsum(dO o O) - dLSE. Dropout scales P for dV and dP for dS by keep/(1-p); softcap multiplies
// dS by its derivative. Hidden pairs give exact zeros by selection, so nothing that a row does not see
// reaches its gradient here.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Rows of one head, packed for a block of `width` lanes (whole vectors).
struct QueryBlock {
  Lanes& lanes;
  int width;
  float* q_t;     // [head_dim][width], as given: scaling a product once rounds once; elements of the products
  float* dout_t;  // [head_dim_v][width]
  float* q;       // [width][pitch_qk], as given; elements
  float* dout;    // [width][pitch_v]
  float* lse;     // [width]; +inf for lanes that see nothing
  float* delta;   // [width]
};

template <class Element>
struct KeyTile {
  const Element* k;  // row j0 + j at k + j * k_stride
  const Element* v;
  const Element* k_units;  // as the products over keys take K
  int64_t k_stride, v_stride, units_stride;
  const int32_t* segments;  // ids of the tile's keys, or null
};

struct TileBuffers {
  float* p;      // [tile_n][width]: S^T, then P^T (with dropout)
  float* ds;     // [tile_n][width]: dP^T, then dS^T
  float* add;    // bias and mask
  float* slope;  // softcap's derivative
  float* keep;   // dropout
};

// A tile's keys, cut where vectors of lanes stop to see them.
struct Cut {
  Piece pieces[kMaxPieces];
  int count;
};

inline Cut cut_tile(const QueryBlock& block, TileClass tile_class, int64_t j0, int n, int unit) {
  const int vectors = block.width / kLanes;
  Cut cut;
  cut.count = 1;
  cut.pieces[0] = {0, n, 0, vectors};
  if (tile_class == TileClass::partial)
    cut.count = cut_pieces(cut.pieces, block.lanes, j0, n, vectors, kLanes, unit);
  return cut;
}

// What dS is the gradient of: q.k before the softcap (for dQ and dK), or the score after it, where a bias is
// added.
enum class ScoreStage { product, biased };

// Keys j0 .. j0 + n of the tile, whose row 0 is key tile_j0.
template <class Products>
inline void TileGradients(const BackwardParams& p, const QueryBlock& block,
                          const KeyTile<typename Products::Element>& keys, int64_t tile_j0, int64_t j0, int n,
                          TileClass tile_class, const Cut& cut, bool general, ScoreStage stage,
                          const TileBuffers& w, Ahead* ahead) {
  using Element = typename Products::Element;
  constexpr int kUnit = Products::kUnit;

  const int64_t first = j0 - tile_j0;
  const int width = block.width;
  const auto d_qk = static_cast<int>((p.head_dim + kUnit - 1) / kUnit),
             d_v = static_cast<int>((p.head_dim_v + kUnit - 1) / kUnit);
  for (int i = 0; i < cut.count; ++i) {
    const Piece& piece = cut.pieces[i];
    const int rows = piece.last - piece.first, x = piece.begin * kLanes, end = piece.end * kLanes;
    const int64_t key = first + piece.first, at = static_cast<int64_t>(piece.first) * width;
    Panels<true, Out::kStore>(rows, d_qk, keys.k + key * keys.k_stride, keys.k_stride,
                              ElementsOf<Element>(block.q_t) + x, width, w.p + at + x, width, end - x,
                              nullptr, ahead);
    Panels<true, Out::kStore>(rows, d_v, keys.v + key * keys.v_stride, keys.v_stride,
                              ElementsOf<Element>(block.dout_t) + x, width, w.ds + at + x, width, end - x,
                              nullptr, ahead);
    FillOutside(w.p + at, width, rows, x, end, width, kNegativeInfinity);
    FillOutside(w.ds + at, width, rows, x, end, width, 0.0f);
  }
  const bool capped = p.softcap > 0.0f && stage == ScoreStage::product;
  if (general) {
    const bool added = load_bias_and_mask(w.add, width, p, block.lanes, j0, n);
    FinishScores(w.p, width, block.lanes, p, p.scale, j0, n, added ? w.add : nullptr,
                 keys.segments ? keys.segments + first : nullptr, capped ? w.slope : nullptr);
  } else if (tile_class == TileClass::partial) {
    MaskIntervals(w.p, width, block.lanes, j0, n);
  }
  const bool dropped = p.dropout_threshold != 0;
  if (dropped) LoadDropout(w.keep, width, p, block.lanes, j0, n);

  const D d;
  // score - lse is rounded once, as a difference, before it goes to log2 units: both can be large beside it.
  const V factor = hn::Set(d, general ? 1.0f : p.scale), log2e = hn::Set(d, kLog2E);
  const V hidden = hn::Set(d, kNegativeInfinity);
  const bool select = general || tile_class == TileClass::partial;
  for (int64_t r = 0; r < width; r += kLanes) {
    const V lse = hn::Load(d, block.lse + r), delta = hn::Load(d, block.delta + r);
    const auto weight_of = [&](V score)
                               HWY_ATTR { return Exp2(hn::Mul(hn::MulSub(score, factor, lse), log2e)); };
    float* HWY_RESTRICT p_at = w.p + r;
    float* HWY_RESTRICT ds_at = w.ds + r;
    if (!select && !dropped) {
      for (int j = 0; j < n; ++j, p_at += width, ds_at += width) {
        const V weight = weight_of(hn::Load(d, p_at));
        hn::Store(weight, d, p_at);
        hn::Store(hn::Mul(weight, hn::Sub(hn::Load(d, ds_at), delta)), d, ds_at);
      }
      continue;
    }
    const float* HWY_RESTRICT slope = w.slope + r;
    const float* HWY_RESTRICT keep = w.keep + r;
    for (int j = 0; j < n; ++j, p_at += width, ds_at += width, slope += width, keep += width) {
      const V score = hn::Load(d, p_at);
      const auto out = hn::Eq(score, hidden);
      V weight = weight_of(score);
      V dp = hn::Load(d, ds_at);
      if (dropped) dp = hn::Mul(dp, hn::Load(d, keep));
      V ds = hn::Mul(weight, hn::Sub(dp, delta));
      if (capped) ds = hn::Mul(ds, hn::Load(d, slope));
      if (dropped) weight = hn::Mul(weight, hn::Load(d, keep));
      hn::Store(hn::IfThenZeroElse(out, ds), d, ds_at);
      hn::Store(hn::IfThenZeroElse(out, weight), d, p_at);
    }
  }
}

// lse and delta of row r of a block from its dO as fp32; row_buffer holds head_dim_v floats. False where the
// row has no gradient: its q and dO must be zeros in the packs.
inline bool RowStatistics(QueryBlock& block, const BackwardParams& p, int64_t b, int64_t row, int64_t head,
                          int r, const float* dout, float* row_buffer) {
  const auto stat = [&](const RowStats& t) { return t.at(b, row, head); };
  if (p.delta.data) {
    block.delta[r] = stat(p.delta);
  } else {
    ConvertRow(row_buffer, p.o, p.o.at(b, row, head), p.head_dim_v);
    block.delta[r] = Dot(dout, row_buffer, p.head_dim_v);
  }
  if (p.dlse.data) block.delta[r] -= stat(p.dlse);
  const float lse = stat(p.lse);
  // lse -inf: bias or mask hides what the interval leaves. Its dO must not meet a zero of P.
  if (block.lanes.sees_nothing(r) || lse == kNegativeInfinity) return false;
  block.lse[r] = lse;
  return true;
}

// The packs of a block, whose lanes are filled, and its row statistics. `o` is read where delta is not given;
// row_buffer holds max(head_dim, head_dim_v) floats.
inline void PackQueryBlock(QueryBlock& block, const BackwardParams& p, const Sequence& sequence, int64_t b,
                           int64_t head, int64_t first, int count, int64_t pitch_qk, int64_t pitch_v,
                           float* row_buffer) {
  for (int r = 0; r < block.width; ++r) {
    float *q = block.q + r * pitch_qk, *dout = block.dout + r * pitch_v;
    block.lse[r] = -kNegativeInfinity;
    block.delta[r] = 0.0f;
    const int64_t row = sequence.q_begin + first + r;
    bool live = r < count;
    if (live) {
      ConvertPaddedRow(dout, p.dout, p.dout.at(b, row, head), p.head_dim_v, pitch_v);
      live = RowStatistics(block, p, b, row, head, r, dout, row_buffer);
    }
    if (!live) {
      std::fill_n(q, pitch_qk, 0.0f);
      std::fill_n(dout, pitch_v, 0.0f);
      continue;
    }
    ConvertPaddedRow(q, p.q, p.q.at(b, row, head), p.head_dim, pitch_qk);
  }
  Transpose<false>(block.q, pitch_qk, block.width, static_cast<int>(p.head_dim), block.q_t, block.width,
                   ColumnFactors(1.0f));
  Transpose<false>(block.dout, pitch_v, block.width, static_cast<int>(p.head_dim_v), block.dout_t,
                   block.width, ColumnFactors(1.0f));
}

// What the backward multiplies: fp32 elements. Other gradients (pair_gradients-inl.h) have the same members.
struct Fp32Gradients {
  using Element = float;
  static constexpr int kUnit = 1;  // dims, keys or rows of q that an element stands for

  static void Pack(QueryBlock& block, const BackwardParams& p, const Sequence& sequence, int64_t b,
                   int64_t head, int64_t first, int count, const BackwardSizes& sizes, float* row_buffer) {
    PackQueryBlock(block, p, sequence, b, head, first, count, sizes.pitch_qk, sizes.pitch_v, row_buffer);
  }

  // Keys [j0, j0 + n) of a key head: in place, or brought together where several q blocks `share` them. Also
  // says whether every row of K is finite.
  static KeyTile<float> Keys(const BackwardParams& p, const BackwardScratch& w, const BackwardSizes& sizes,
                             int64_t b, int64_t head, int64_t row0, int n, bool share, bool* finite) {
    KeyTile<float> tile{};
    tile.k = RowsAsFloat(p.k, b, head, row0, n, p.head_dim, sizes.pitch_qk, w.k_tile, share, &tile.k_stride);
    tile.v = RowsAsFloat(p.v, b, head, row0, n, p.head_dim_v, sizes.pitch_v, w.v_tile, share, &tile.v_stride);
    tile.k_units = tile.k;
    tile.units_stride = tile.k_stride;
    *finite = true;
    for (int j = 0; j < n && *finite; ++j) *finite = AllFinite(tile.k + j * tile.k_stride, p.head_dim);
    return tile;
  }

  // k_units of `tile` with the rows cleared that are not `seen`, keys [first, first + n) of it.
  static void ClearUnseen(const BackwardParams& p, const BackwardScratch& w, const BackwardSizes& sizes,
                          const bool* seen, int first, int n, KeyTile<float>* tile) {
    for (int j = first; j < first + n; ++j) {
      float* to = w.k_clear + j * sizes.pitch_qk;
      if (seen[j - first])
        std::memcpy(to, tile->k + j * tile->k_stride, static_cast<size_t>(p.head_dim) * sizeof(float));
      else
        std::fill_n(to, p.head_dim, 0.0f);
    }
    tile->k_units = w.k_clear;
    tile->units_stride = sizes.pitch_qk;
  }

  // P^T and dS^T of n keys from j0 on, as dV, dK and dQ take them: what they are in then.
  struct Rounded {
    const float *p, *ds, *ds_units;
  };
  static Rounded Round(const BackwardScratch& w, int, int64_t, int) { return {w.p, w.ds, w.ds}; }
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
