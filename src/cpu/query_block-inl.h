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
};

// q_t = Q^T * factor; lanes that see nothing hold zeros. `rows` takes [width][pitch] floats.
inline void PackQueries(const ForwardBlock& block, const ForwardParams& p, float factor, float* rows,
                        int64_t pitch) {
  const Lanes& lanes = *block.lanes;
  for (int r = 0; r < block.width; ++r) {
    float* row = rows + r * pitch;
    if (r >= lanes.count || lanes.sees_nothing(r)) {
      std::memset(row, 0, static_cast<size_t>(p.head_dim) * sizeof(float));
      continue;
    }
    ConvertRow(row, p.q,
               lanes.b * p.q.batch_stride + (lanes.sequence.q_begin + lanes.row[r]) * p.q.row_stride +
                   lanes.head[r] * p.q.head_stride,
               p.head_dim);
  }
  Transpose(rows, pitch, block.width, static_cast<int>(p.head_dim), block.q_t, block.width, factor);
}

inline void ClearOutput(const ForwardBlock& block, int64_t head_dim_v) {
  std::memset(block.o_t, 0, static_cast<size_t>(block.width * head_dim_v) * sizeof(float));
  for (int r = 0; r < block.width; ++r) {
    block.top[r] = kNegativeInfinity;
    block.sum[r] = 0.0f;
  }
}

// Divides by the sums, joins the sink, writes O and lse of the block's rows. `natural`: top is in natural
// units, else in log2 units. `rows` takes [width][pitch] floats.
inline void WriteOutput(const ForwardBlock& block, const ForwardParams& p, bool natural, float* rows,
                        int64_t pitch) {
  const Lanes& lanes = *block.lanes;
  const Sequence& s = lanes.sequence;
  const int64_t b = lanes.b;
  const double unit = natural ? 1.0 : kLn2Double;
  Transpose(block.o_t, block.width, static_cast<int>(p.head_dim_v), block.width, rows, pitch, 1.0f);
  for (int r = 0; r < lanes.count; ++r) {
    const int64_t row = lanes.row[r], head = lanes.head[r];
    const bool real = row < s.len_q;
    const float sink = p.sinks && real ? p.sinks[head * p.sinks_stride] : kNegativeInfinity;
    // A row whose only scores are NaN has no maximum either, but its sum is NaN.
    const bool empty =
        !real || lanes.sees_nothing(r) || (block.top[r] == kNegativeInfinity && block.sum[r] == 0.0f);
    float lse = sink, factor = 0.0f;
    if (!empty) {
      // exp(lse) is the sum of the keys' weights, sum * exp(top), and of the sink's.
      const double keys = block.top[r] * unit + static_cast<double>(std::log(block.sum[r]));
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
      p.lse.data[b * p.lse.batch_stride + head * p.lse.head_stride + (s.q_begin + row) * p.lse.row_stride] =
          lse;
    StoreRow(p.o, b * p.o.batch_stride + (s.q_begin + row) * p.o.row_stride + head * p.o.head_stride,
             rows + r * pitch, p.head_dim_v, factor, empty);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
