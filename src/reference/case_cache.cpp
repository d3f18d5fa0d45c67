#include "reference/case_cache.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "reference/elements.h"
#include "reference/visible.h"

namespace tilewise {

CaseTensor make_page_table(const Case& c, uint64_t seed) {
  const Problem& p = c.problem;
  const std::vector<int64_t> shape{p.batch, p.max_pages};
  CaseTensor table(DType::i32, shape, row_major(shape), 0);
  std::vector<int32_t> free(static_cast<size_t>(p.num_pages - 1));
  std::iota(free.begin(), free.end(), 1);
  Random random(seed ^ 0x9a6e5);
  if (c.pages == "reversed") {
    std::reverse(free.begin(), free.end());
  } else {
    for (size_t n = free.size(); n > 1; --n)
      std::swap(free[n - 1], free[static_cast<size_t>(random.integer(0, static_cast<int64_t>(n) - 1))]);
  }
  auto* entries = static_cast<int32_t*>(table.data());
  size_t next = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t length = c.kv_lengths.empty() ? p.seqlen_kv : c.kv_lengths[static_cast<size_t>(b)];
    for (int64_t entry = 0; entry < p.max_pages; ++entry) {
      int32_t& page = entries[b * p.max_pages + entry];
      if (entry * p.page_size >= length)
        page = -1;
      else if (c.pages == "shared" && b > 0 && entry % 2 == 0 && entries[entry] >= 0)
        page = entries[entry];
      else
        page = free[next++];
    }
  }
  return table;
}

void fill_cache(const ForwardParams& p, const Case& c, const std::string& name, Random& random,
                CaseTensor* tensor) {
  const RowTensor& t = name == "k" ? p.k : p.v;
  const int64_t dim = name == "k" ? p.head_dim : p.head_dim_v;
  std::unordered_set<int64_t> filled;
  for (int64_t b = 0; b < p.batch; ++b) {
    const SequenceShape s = shape_of_sequence(p, b);
    for (int64_t j = 0; j < p.seqlen_kv; ++j) {
      for (int64_t h = 0; h < p.heads_kv; ++h) {
        const bool exists = has_memory(p, b, j);
        const int64_t at = exists ? offset_of_key(p, t, s, b, j, h) : 0;
        const bool first = exists && filled.insert(at).second;
        for (int64_t d = 0; d < dim; ++d) {
          const double value = input_value(c, name, j, h, d, random);
          if (first)
            write_element(tensor->data(), tensor->dtype(), at + d, value * stored_unit(tensor->dtype()));
        }
      }
    }
  }
}

}  // namespace tilewise
