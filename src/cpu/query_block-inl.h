// A block of query lanes in the forward: its packed Q^T, its O^T and the state of its softmax; how it begins
// and ends.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// `width` lanes (whole vectors), which is also the leading dimension of its tiles.
struct ForwardBlock {
  Lanes* lanes;
  float* q_t;  // [head_dim][width]
  float* o_t;  // [head_dim_v][width]
  float* top;  // [width]
  float* sum;  // [width]
  int width;
  bool packed;
  bool started;  // o_t holds something
};

constexpr int kDepth =
    128;  // elements of one pass of S^T = K Q^T: a panel of Q^T stays in L1, and sums stay short

// s[key][lane] = K Q^T for n rows of K and `lanes` lanes of Q^T [dim][ld], s at the same leading dimension.
template <class Element>
inline void ScoreProduct(int n, int dim, const Element* k, int64_t k_stride, const Element* q_t, float* s,
                         int64_t ld, int lanes, Ahead* ahead) {
  Panels<true, Out::kStore>(n, std::min(kDepth, dim), k, k_stride, q_t, ld, s, ld, lanes, nullptr, ahead);
  for (int c = kDepth; c < dim; c += kDepth)
    Panels<true, Out::kAccumulate>(n, std::min(kDepth, dim - c), k + c, k_stride, q_t + c * ld, ld, s, ld,
                                   lanes);
}

inline int64_t row_offset(const RowTensor& t, const Lanes& lanes, int r) {
  return t.at(lanes.b, lanes.sequence.q_begin + lanes.row[r], lanes.head[r]);
}

// Every lane holds a row, and they are neighbours in memory: no copy on the way to the transpose.
inline bool is_plain(const ForwardBlock& block, const ForwardParams& p) {
  return p.group() == 1 && block.lanes->count == block.width;
}

// What raw products q.k are multiplied by to be scores in log2 units. The sign of a negative scale goes into
// the packed q, and so does a scale of 0: maxima stay maxima.
inline float factor_of(const ForwardParams& p) {
  return p.scale == 0.0f ? kLog2E : std::fabs(p.scale) * kLog2E;
}
inline float sign_of(const ForwardParams& p) { return p.scale > 0.0f ? 1.0f : p.scale < 0.0f ? -1.0f : 0.0f; }

// q_t = Q^T * factor; lanes that see nothing hold zeros. `rows` takes [width][pitch] floats.
inline void PackQueries(const ForwardBlock& block, const ForwardParams& p, float factor, float* rows,
                        int64_t pitch) {
  const Lanes& lanes = *block.lanes;
  const int dim = static_cast<int>(p.head_dim);
  if (p.q.dtype == DType::f32 && is_plain(block, p) && lanes.bounds.hi_min > 0) {
    const float* from = static_cast<const float*>(p.q.data) + row_offset(p.q, lanes, 0);
    Transpose<false>(from, p.q.row_stride, block.width, dim, block.q_t, block.width, ColumnFactors(factor));
    return;
  }
  for (int r = 0; r < block.width; ++r) {
    float* row = rows + r * pitch;
    if (r >= lanes.count || lanes.sees_nothing(r)) {
      std::memset(row, 0, static_cast<size_t>(p.head_dim) * sizeof(float));
      continue;
    }
    ConvertRow(row, p.q, row_offset(p.q, lanes, r), p.head_dim);
  }
  Transpose<false>(rows, pitch, block.width, dim, block.q_t, block.width, ColumnFactors(factor));
}

inline void BeginSoftmax(ForwardBlock& block) {
  block.started = false;
  for (int r = 0; r < block.width; ++r) {
    block.top[r] = kNegativeInfinity;
    block.sum[r] = 0.0f;
  }
}

// lse of a row's keys, whose weights' sum is sum * exp(top). `scaled`: the raw product's maximum as the
// weights have it, in log2 units and rounded to fp32, or a natural score.
inline double LogSumExp(float scaled, bool natural, float sum) {
  return (natural ? scaled : scaled * kLn2Double) + static_cast<double>(std::log(sum));
}

inline void ClearOutput(ForwardBlock& block, int64_t head_dim_v) {
  std::memset(block.o_t, 0, static_cast<size_t>(block.width * head_dim_v) * sizeof(float));
  block.started = true;
}

// How a row ends whose scores' maximum is `top`, a natural score or a raw product, and whose weights add up
// to `sum`.
inline RowEnd EndOfRow(const ForwardParams& p, bool natural, float top, float sum, float sink) {
  if (saw_nothing(top, sum)) return {0.0f, sink};
  return join_sink(LogSumExp(natural ? top : top * factor_of(p), natural, sum), sum, sink);
}

// The sink of a row, -inf where there is none.
inline float SinkOf(const ForwardParams& p, int64_t head) {
  return p.sinks ? p.sinks[head * p.sinks_stride] : kNegativeInfinity;
}

// FinishRow for a block without sinks all of whose rows see something; false, having written nothing that
// FinishRow would not write again, where that is not so.
inline bool FinishPlainRows(const ForwardBlock& block, const ForwardParams& p, bool natural, float* factors) {
  const Lanes& lanes = *block.lanes;
  if (p.sinks || lanes.row[block.width - 1] >= lanes.sequence.len_q) return false;
  const float unit = natural ? 1.0f : factor_of(p);
  float* lse =
      p.lse.data ? &p.lse.at(lanes.b, lanes.sequence.q_begin + lanes.row[0], lanes.head[0]) : nullptr;
  for (int r = 0; r < block.width; ++r) {
    if (!(block.sum[r] > 0.0f)) return false;
    factors[r] = 1.0f / block.sum[r];
    if (lse)
      lse[r * p.lse.row_stride] = static_cast<float>(LogSumExp(block.top[r] * unit, natural, block.sum[r]));
  }
  return true;
}

// Writes a row's lse; returns what its O is to be multiplied by. `empty`: it sees nothing. `natural`: top is
// a natural score, else a raw product.
inline float FinishRow(const ForwardBlock& block, const ForwardParams& p, bool natural, int r, bool* empty) {
  const Lanes& lanes = *block.lanes;
  const Sequence& s = lanes.sequence;
  const int64_t row = lanes.row[r], head = lanes.head[r];
  const bool real = row < s.len_q;
  const float sink = real ? SinkOf(p, head) : kNegativeInfinity;
  *empty = !real || lanes.sees_nothing(r) || saw_nothing(block.top[r], block.sum[r]);
  const RowEnd end = *empty ? RowEnd{0.0f, sink} : EndOfRow(p, natural, block.top[r], block.sum[r], sink);
  if (p.lse.data) p.lse.at(lanes.b, s.q_begin + row, head) = end.lse;
  return end.factor;
}

// Divides by the sums, joins the sink, writes O and lse of the block's rows. `natural`: top is in natural
// units, else in log2 units. `factors` takes [width] floats, `rows` [width][pitch].
inline void WriteOutput(const ForwardBlock& block, const ForwardParams& p, bool natural, float* factors,
                        float* rows, int64_t pitch) {
  const Lanes& lanes = *block.lanes;
  const int width = block.width, dim = static_cast<int>(p.head_dim_v);
  if (p.o.dtype == DType::f32 && is_plain(block, p) && FinishPlainRows(block, p, natural, factors)) {
    Transpose<true>(block.o_t, width, dim, width, static_cast<float*>(p.o.data) + row_offset(p.o, lanes, 0),
                    p.o.row_stride, ColumnFactors(factors));
    return;
  }
  Transpose<true>(block.o_t, width, dim, width, rows, pitch, ColumnFactors(1.0f));
  for (int r = 0; r < lanes.count; ++r) {
    bool empty = false;
    const float factor = FinishRow(block, p, natural, r, &empty);
    StoreRow(p.o, row_offset(p.o, lanes, r), rows + r * pitch, p.head_dim_v, factor, empty);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
