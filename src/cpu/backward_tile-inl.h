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
  float* q_t;     // [head_dim][width], as given: scaling a product once rounds once
  float* dout_t;  // [head_dim_v][width]
  float* q;       // [width][pitch_qk], as given
  float* dout;    // [width][pitch_v]
  float* lse;     // [width]; +inf for lanes that see nothing
  float* delta;   // [width]
};

struct KeyTile {
  const float* k;  // row j0 + j at k + j * k_stride
  const float* v;
  int64_t k_stride, v_stride;
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

inline Cut cut_tile(const QueryBlock& block, TileClass tile_class, int64_t j0, int n) {
  const int vectors = block.width / kLanes;
  Cut cut;
  cut.count = 1;
  cut.pieces[0] = {0, n, 0, vectors};
  if (tile_class == TileClass::partial)
    cut.count = cut_pieces(cut.pieces, block.lanes, j0, n, vectors, kLanes);
  return cut;
}

// What dS is the gradient of: q.k before the softcap (for dQ and dK), or the score after it, where a bias is
// added.
enum class ScoreStage { product, biased };

// Keys j0 .. j0 + n of the tile, whose row 0 is key tile_j0.
inline void TileGradients(const BackwardParams& p, const QueryBlock& block, const KeyTile& keys,
                          int64_t tile_j0, int64_t j0, int n, TileClass tile_class, const Cut& cut,
                          bool general, ScoreStage stage, const TileBuffers& w, Ahead* ahead) {
  const int64_t first = j0 - tile_j0;
  const int width = block.width;
  const int d_qk = static_cast<int>(p.head_dim), d_v = static_cast<int>(p.head_dim_v);
  for (int i = 0; i < cut.count; ++i) {
    const Piece& piece = cut.pieces[i];
    const int rows = piece.last - piece.first, x = piece.begin * kLanes, end = piece.end * kLanes;
    const int64_t key = first + piece.first, at = static_cast<int64_t>(piece.first) * width;
    Panels<true, Out::kStore>(rows, d_qk, keys.k + key * keys.k_stride, keys.k_stride, block.q_t + x, width,
                              w.p + at + x, width, end - x, nullptr, ahead);
    Panels<true, Out::kStore>(rows, d_v, keys.v + key * keys.v_stride, keys.v_stride, block.dout_t + x, width,
                              w.ds + at + x, width, end - x, nullptr, ahead);
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

// The packs of a block, whose lanes are filled, and its row statistics. `o` is read where delta is not given;
// row_buffer holds max(head_dim, head_dim_v) floats.
inline void PackQueryBlock(QueryBlock& block, const BackwardParams& p, const Sequence& sequence, int64_t b,
                           int64_t head, int64_t first, int count, int64_t pitch_qk, int64_t pitch_v,
                           float* row_buffer) {
  for (int r = 0; r < block.width; ++r) {
    float *q = block.q + r * pitch_qk, *dout = block.dout + r * pitch_v;
    block.lse[r] = -kNegativeInfinity;
    block.delta[r] = 0.0f;
    if (r >= count) {
      std::fill_n(q, pitch_qk, 0.0f);
      std::fill_n(dout, pitch_v, 0.0f);
      continue;
    }
    const int64_t row = sequence.q_begin + first + r;
    const auto at = [&](const RowTensor& t) { return t.at(b, row, head); };
    const auto stat = [&](const RowStats& t) { return t.at(b, row, head); };
    ConvertPaddedRow(dout, p.dout, at(p.dout), p.head_dim_v, pitch_v);
    if (p.delta.data) {
      block.delta[r] = stat(p.delta);
    } else {
      ConvertRow(row_buffer, p.o, at(p.o), p.head_dim_v);
      block.delta[r] = Dot(dout, row_buffer, p.head_dim_v);
    }
    if (p.dlse.data) block.delta[r] -= stat(p.dlse);
    const float lse = stat(p.lse);
    // lse -inf: bias or mask hides what the interval leaves. Its dO must not meet a zero of P.
    if (block.lanes.sees_nothing(r) || lse == kNegativeInfinity) {
      std::fill_n(q, pitch_qk, 0.0f);
      std::fill_n(dout, pitch_v, 0.0f);
      continue;
    }
    block.lse[r] = lse;
    ConvertPaddedRow(q, p.q, at(p.q), p.head_dim, pitch_qk);
  }
  Transpose<false>(block.q, pitch_qk, block.width, static_cast<int>(p.head_dim), block.q_t, block.width,
                   ColumnFactors(1.0f));
  Transpose<false>(block.dout, pitch_v, block.width, static_cast<int>(p.head_dim_v), block.dout_t,
                   block.width, ColumnFactors(1.0f));
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
