// Causal grouped-query attention from C++20, forward and backward, in one call each; one row checked against
// plain loops.
//
//   c++ -std=c++20 attend.cpp $(pkg-config --cflags --libs tilewise) -o attend && ./attend
#include <tilewise/attention.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr int64_t kBatch = 2, kSeqlen = 384, kHeads = 8, kHeadsKv = 2, kHeadDim = 64;

std::vector<float> random_values(int64_t count) {
  static std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

// o of one query by the definition: softmax(q k^T / sqrt(head_dim)) v over the keys up to its own position.
std::vector<double> plain_row(const float* q, const float* k, const float* v, int64_t row, int64_t head) {
  const int64_t stride = kHeadsKv * kHeadDim, first = head / (kHeads / kHeadsKv) * kHeadDim;
  std::vector<double> p, o(kHeadDim, 0.0);
  double top = -INFINITY, sum = 0;
  for (int64_t key = 0; key <= row; ++key) {
    double score = 0;
    for (int64_t d = 0; d < kHeadDim; ++d) score += double(q[d]) * k[key * stride + first + d];
    p.push_back(score / std::sqrt(double(kHeadDim)));
    top = std::max(top, p.back());
  }
  for (double& x : p) sum += x = std::exp(x - top);
  for (int64_t key = 0; key <= row; ++key) {
    for (int64_t d = 0; d < kHeadDim; ++d) o[size_t(d)] += p[size_t(key)] / sum * v[key * stride + first + d];
  }
  return o;
}

// Milliseconds of one call; leaves main with its sentence where it is refused.
template <typename Call>
double timed(Call call) {
  const auto start = std::chrono::steady_clock::now();
  const tilewise::Status status = call();
  if (!status) {
    std::fprintf(stderr, "tilewise: %s\n", status.message().c_str());
    std::exit(1);
  }
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main() {
  const int64_t count_q = kBatch * kSeqlen * kHeads * kHeadDim,
                count_kv = kBatch * kSeqlen * kHeadsKv * kHeadDim;
  const std::vector<float> q = random_values(count_q), k = random_values(count_kv),
                           v = random_values(count_kv), dout = random_values(count_q);
  std::vector<float> o(q.size()), lse(kBatch * kHeads * kSeqlen), dq(q.size()), dk(k.size()), dv(v.size());

  auto context = tilewise::Context::create();
  if (!context) return 1;
  tilewise::Tensors t{};
  t.q = tilewise::Tensor(q.data(), {kBatch, kSeqlen, kHeads, kHeadDim});
  t.k = tilewise::Tensor(k.data(), {kBatch, kSeqlen, kHeadsKv, kHeadDim});
  t.v = tilewise::Tensor(v.data(), {kBatch, kSeqlen, kHeadsKv, kHeadDim});
  t.o = tilewise::Tensor(o.data(), {kBatch, kSeqlen, kHeads, kHeadDim});
  t.lse = tilewise::Tensor(lse.data(), {kBatch, kHeads, kSeqlen});  // wanted: backward reads it

  auto options = tilewise::Problem().with_causal();
  const double forward = timed([&] { return tilewise::attention(*context, options, t); });

  options.direction = TILEWISE_BACKWARD;
  t.dout = tilewise::Tensor(dout.data(), {kBatch, kSeqlen, kHeads, kHeadDim});
  t.dq = tilewise::Tensor(dq.data(), {kBatch, kSeqlen, kHeads, kHeadDim});
  t.dk = tilewise::Tensor(dk.data(), {kBatch, kSeqlen, kHeadsKv, kHeadDim});
  t.dv = tilewise::Tensor(dv.data(), {kBatch, kSeqlen, kHeadsKv, kHeadDim});
  const double backward = timed([&] { return tilewise::attention(*context, options, t); });

  const int64_t batch = 1, row = kSeqlen / 2, head = 5;
  const int64_t at = ((batch * kSeqlen + row) * kHeads + head) * kHeadDim;
  const int64_t keys = batch * kSeqlen * kHeadsKv * kHeadDim;
  const std::vector<double> expected =
      plain_row(&q[size_t(at)], &k[size_t(keys)], &v[size_t(keys)], row, head);
  double worst = 0;
  for (size_t d = 0; d < expected.size(); ++d)
    worst = std::max(worst, std::fabs(expected[d] - o[size_t(at) + d]));

  // A score is linear in q and in k: sum q.dq = sum s ds = sum k.dk, over everything.
  double q_dq = 0, k_dk = 0;
  for (size_t i = 0; i < q.size(); ++i) q_dq += double(q[i]) * dq[i];
  for (size_t i = 0; i < k.size(); ++i) k_dk += double(k[i]) * dk[i];

  std::printf(
      "forward %.2f ms, backward %.2f ms on %d threads; row %d of head %d within %.1e of plain loops; ",
      forward, backward, context->threads(), int(row), int(head), worst);
  std::printf("sum q.dq %.6f, sum k.dk %.6f\n", q_dq, k_dk);
  return worst < 1e-5 && std::fabs(q_dq - k_dk) < 1e-3 * (1 + std::fabs(q_dq)) ? 0 : 1;
}
