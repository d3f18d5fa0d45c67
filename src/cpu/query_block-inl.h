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
};

constexpr int kDepth = 128;  // of one pass of S^T = K Q^T: a panel of Q^T stays in L1, and sums stay short

// s[key][lane] = K Q^T for n rows of K and `lanes` lanes of Q^T [dim][ld], s at the same leading dimension.
inline void ScoreProduct(int n, int dim, const float* k, int64_t k_stride, const float* q_t, float* s,
                         int64_t ld, int lanes, Ahead* ahead) {
  Panels<true, Out::kStore>(n, std::min(kDepth, dim), k, k_stride, q_t, ld, s, ld, lanes, nullptr, ahead);
  for (int c = kDepth; c < dim; c += kDepth)
    Panels<true, Out::kAccumulate>(n, std::min(kDepth, dim - c), k + c, k_stride, q_t + c * ld, ld, s, ld,
                                   lanes);
}

inline int64_t row_offset(const RowTensor& t, const Lanes& lanes, int r) {
  return lanes.b * t.batch_stride + (lanes.sequence.q_begin + lanes.row[r]) * t.row_stride +
         lanes.head[r] * t.head_stride;
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
    Transpose<false>(from, p.q.row_stride, block.width, dim, block.q_t, block.width, factor);
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
  Transpose<false>(rows, pitch, block.width, dim, block.q_t, block.width, factor);
}

inline void ClearOutput(const ForwardBlock& block, int64_t head_dim_v) {
  std::memset(block.o_t, 0, static_cast<size_t>(block.width * head_dim_v) * sizeof(float));
  for (int r = 0; r < block.width; ++r) {
    block.top[r] = kNegativeInfinity;
    block.sum[r] = 0.0f;
  }
}

// Writes a row's lse; returns what its O is to be multiplied by, 0 where it sees nothing. `natural`: top is a
// natural score, else a raw product.
inline float FinishRow(const ForwardBlock& block, const ForwardParams& p, bool natural, int r) {
  const Lanes& lanes = *block.lanes;
  const Sequence& s = lanes.sequence;
  const int64_t row = lanes.row[r], head = lanes.head[r];
  const bool real = row < s.len_q;
  const float sink = p.sinks && real ? p.sinks[head * p.sinks_stride] : kNegativeInfinity;
  // A row whose only scores are NaN has no maximum either, but its sum is NaN.
  const bool empty =
      !real || lanes.sees_nothing(r) || (block.top[r] == kNegativeInfinity && block.sum[r] == 0.0f);
  float lse = sink, factor = 0.0f;
  if (!empty) {
    // exp(lse) is the sum of the keys' weights, sum * exp(top), and of the sink's.
    const float scaled = block.top[r] * factor_of(p);  // as the weights have it, rounded to fp32
    const double top = natural ? static_cast<double>(block.top[r]) : scaled * kLn2Double;
    const double keys = top + static_cast<double>(std::log(block.sum[r]));
    double all = keys;
    factor = 1.0f / block.sum[r];
    if (sink != kNegativeInfinity) {
      const double larger = std::max(keys, static_cast<double>(sink));
      all = larger + std::log(std::exp(keys - larger) + std::exp(sink - larger));
      factor *= static_cast<float>(std::exp(keys - all));
    }
    lse = static_cast<float>(all);
  }
  if (p.lse.data)
    p.lse.data[lanes.b * p.lse.batch_stride + head * p.lse.head_stride +
               (s.q_begin + row) * p.lse.row_stride] = lse;
  return factor;
}

// Divides by the sums, joins the sink, writes O and lse of the block's rows. `natural`: top is in natural
// units, else in log2 units. `factors` takes [width] floats, `rows` [width][pitch].
inline void WriteOutput(const ForwardBlock& block, const ForwardParams& p, bool natural, float* factors,
                        float* rows, int64_t pitch) {
  const Lanes& lanes = *block.lanes;
  const int width = block.width, dim = static_cast<int>(p.head_dim_v);
  bool all_see = true;
  for (int r = 0; r < width; ++r) {
    factors[r] = r < lanes.count ? FinishRow(block, p, natural, r) : 0.0f;
    all_see = all_see && factors[r] != 0.0f;
  }
  if (all_see && p.o.dtype == DType::f32 && is_plain(block, p)) {
    ScaleLanes(block.o_t, width, dim, factors);
    Transpose<true>(block.o_t, width, dim, width, static_cast<float*>(p.o.data) + row_offset(p.o, lanes, 0),
                    p.o.row_stride, 1.0f);
    return;
  }
  Transpose<true>(block.o_t, width, dim, width, rows, pitch, 1.0f);
  for (int r = 0; r < lanes.count; ++r)
    StoreRow(p.o, row_offset(p.o, lanes, r), rows + r * pitch, p.head_dim_v, factors[r], factors[r] == 0.0f);
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
