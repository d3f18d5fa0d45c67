// The loop of an inference engine: prompts in chunks, then token by token, over one paged cache; sequences
// come and go, and one plan serves every step. In place of a model, a token's q, k and v are drawn from its
// number; every output is checked against plain loops over the sequence's own history.
//
//   c++ -std=c++20 engine.cpp $(pkg-config --cflags --libs tilewise) -o engine && ./engine
#include <tilewise/attention.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <tuple>
#include <vector>

namespace {

constexpr int64_t kHeads = 8, kHeadsKv = 2, kHeadDim = 64;
constexpr int64_t kMembers = 4, kChunk = 32, kPageSize = 16, kMaxPages = 16, kPages = 40;

void check(const tilewise::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

std::vector<float> values_of(int64_t token, int64_t heads, unsigned salt) {
  std::mt19937 engine(static_cast<unsigned>(token) * 3 + salt);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(heads * kHeadDim));
  for (float& value : values) value = normal(engine);
  return values;
}

struct Sequence {
  int64_t name, prompt, total;      // tokens to begin with, and in the end
  std::vector<int64_t> tokens;      // known so far
  int64_t cached = 0;               // of them in the cache
  std::vector<int32_t> pages = {};  // that it owns
};

// Pages that nobody owns.
class Pages {
 public:
  Pages() {
    for (int32_t page = kPages; page-- > 0;) free_.push_back(page);
  }
  bool grow(Sequence& s, int64_t rows) {
    while (static_cast<int64_t>(s.pages.size()) * kPageSize < rows) {
      if (free_.empty()) return false;
      s.pages.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }
  void take_back(Sequence& s) {
    free_.insert(free_.begin(), s.pages.begin(), s.pages.end());
    s.pages.clear();
  }

 private:
  std::vector<int32_t> free_;
};

// Largest difference of one token's output from softmax(q k^T / sqrt(head_dim)) v over all tokens up to it.
double error_of(const Sequence& s, int64_t position, const float* o) {
  const std::vector<float> q = values_of(s.tokens[static_cast<size_t>(position)], kHeads, 0);
  double worst = 0;
  for (int64_t head = 0; head < kHeads; ++head) {
    const size_t kv = static_cast<size_t>(head / (kHeads / kHeadsKv) * kHeadDim),
                 mine = static_cast<size_t>(head * kHeadDim);
    std::vector<double> sum(kHeadDim, 0.0);
    double weights = 0;
    for (int64_t key = 0; key <= position; ++key) {
      const auto k = values_of(s.tokens[static_cast<size_t>(key)], kHeadsKv, 1),
                 v = values_of(s.tokens[static_cast<size_t>(key)], kHeadsKv, 2);
      double score = 0;
      for (size_t d = 0; d < kHeadDim; ++d) score += double(q[mine + d]) * k[kv + d];
      const double weight = std::exp(score / std::sqrt(double(kHeadDim)));
      weights += weight;
      for (size_t d = 0; d < kHeadDim; ++d) sum[d] += weight * v[kv + d];
    }
    for (size_t d = 0; d < kHeadDim; ++d) worst = std::max(worst, std::fabs(sum[d] / weights - o[mine + d]));
  }
  return worst;
}

}  // namespace

int main() {
  auto context = tilewise::Context::create();
  check(context.status());

  // Upper bounds of any step: up to kMembers sequences with up to kChunk new tokens each, one behind the
  // other.
  tilewise::Problem bounds;
  bounds.with_causal();  // every token sees the cache up to itself
  bounds.batch = kMembers;
  bounds.packed_q = 1;
  bounds.seqlen_q = kChunk;
  bounds.total_q = kMembers * kChunk;
  bounds.page_size = kPageSize;
  bounds.max_pages = kMaxPages;
  bounds.num_pages = kPages;
  bounds.seqlen_kv = kMaxPages * kPageSize;
  bounds.heads_q = kHeads;
  bounds.heads_kv = kHeadsKv;
  bounds.head_dim = bounds.head_dim_v = kHeadDim;
  bounds.features = TILEWISE_HAS_KV_LENGTHS;
  const auto plan = tilewise::plan(bounds, *context);
  check(plan.status());
  std::printf("%s\n", plan->kernel);
  tilewise::Workspace workspace(*plan);
  check(tilewise::prepare(*context, *plan));

  std::vector<float> k_cache(kPages * kPageSize * kHeadsKv * kHeadDim, NAN),
      v_cache = k_cache;  // never read unwritten
  const tilewise::Tensor k(k_cache.data(), {kPages, kPageSize, kHeadsKv, kHeadDim}),
      v(v_cache.data(), {kPages, kPageSize, kHeadsKv, kHeadDim});

  std::vector<Sequence> waiting, running;
  for (int64_t n = 0; n < 9; ++n) {
    Sequence s{.name = n, .prompt = 5 + 19 * n % 83, .total = 0, .tokens = {}};
    s.total = s.prompt + 4 + 7 * n % 13;
    for (int64_t i = 0; i < s.prompt; ++i) s.tokens.push_back(100 * n + i);
    waiting.push_back(s);
  }

  Pages pages;
  double worst = 0;
  int steps = 0;
  for (; !waiting.empty() || !running.empty(); ++steps) {
    while (!waiting.empty() && running.size() < kMembers) {
      running.push_back(waiting.front());
      waiting.erase(waiting.begin());
    }
    const auto batch = static_cast<int64_t>(running.size());
    std::vector<float> q;
    std::vector<int32_t> cu_seqlens{0}, lengths, table(static_cast<size_t>(batch * kMaxPages), -1);
    for (int64_t b = 0; b < batch; ++b) {
      Sequence& s = running[static_cast<size_t>(b)];
      const int64_t first = s.cached, last = std::min(first + kChunk, static_cast<int64_t>(s.tokens.size()));
      if (!pages.grow(s, last)) {
        std::fprintf(stderr, "no page left\n");
        return 1;
      }
      std::copy(s.pages.begin(), s.pages.end(), table.begin() + b * kMaxPages);
      std::vector<float> k_new, v_new;
      for (int64_t i = first; i < last; ++i) {
        const int64_t token = s.tokens[static_cast<size_t>(i)];
        for (auto [to, heads, salt] :
             {std::tuple(&q, kHeads, 0u), {&k_new, kHeadsKv, 1u}, {&v_new, kHeadsKv, 2u}}) {
          const std::vector<float> row = values_of(token, heads, salt);
          to->insert(to->end(), row.begin(), row.end());
        }
      }
      auto start = static_cast<int32_t>(first);
      tilewise::Append rows;
      rows.k_new = tilewise::Tensor(k_new.data(), {1, last - first, kHeadsKv, kHeadDim});
      rows.v_new = tilewise::Tensor(v_new.data(), {1, last - first, kHeadsKv, kHeadDim});
      rows.starts = tilewise::Tensor(&start, {1});
      rows.k = k;
      rows.v = v;
      rows.page_table = tilewise::Tensor(table.data() + b * kMaxPages, {1, kMaxPages});
      check(tilewise::cache_append(*context, rows));
      s.cached = last;
      cu_seqlens.push_back(cu_seqlens.back() + static_cast<int32_t>(last - first));
      lengths.push_back(static_cast<int32_t>(last));
    }

    const int64_t total = cu_seqlens.back();
    std::vector<float> o(q.size());
    tilewise::Tensors t{};
    t.q = tilewise::Tensor(q.data(), {total, kHeads, kHeadDim});
    t.k = k;
    t.v = v;
    t.o = tilewise::Tensor(o.data(), {total, kHeads, kHeadDim});
    t.cu_seqlens_q = tilewise::Tensor(cu_seqlens.data(), {batch + 1});
    t.kv_lengths = tilewise::Tensor(lengths.data(), {batch});
    t.page_table = tilewise::Tensor(table.data(), {batch, kMaxPages});
    check(tilewise::forward(*context, *plan, t, workspace));

    for (int64_t b = 0; b < batch; ++b) {
      Sequence& s = running[static_cast<size_t>(b)];
      const float* last = o.data() + (cu_seqlens[static_cast<size_t>(b) + 1] - 1) * kHeads * kHeadDim;
      worst = std::max(worst, error_of(s, s.cached - 1, last));
      // The next token is whatever a model would make of `last`; here its first number says.
      if (s.cached == static_cast<int64_t>(s.tokens.size()) && s.cached < s.total)
        s.tokens.push_back(1000 + static_cast<int64_t>(std::fabs(last[0]) * 1000) % 1000);
    }
    std::erase_if(running, [&](Sequence& s) {
      if (s.cached < s.total) return false;
      pages.take_back(s);
      return true;
    });
  }
  std::printf("9 sequences in %d steps, largest error %.1e\n", steps, worst);
  return worst < 1e-5 ? 0 : 1;
}
