// random_case: lines of the case grammar that reach every option and both sides of tile edges.

#include <algorithm>

#include "reference/case_values.h"

namespace tilewise {
namespace {

class Line {
 public:
  void add(const std::string& key, const std::string& value) {
    if (!text_.empty()) text_ += ' ';
    text_ += key;
    text_ += '=';
    text_ += value;
  }
  void add(const std::string& key, int64_t value) { add(key, std::to_string(value)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string join(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t n : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(n);
  }
  return text;
}

template <size_t N>
std::string pick(Random& random, const char* const (&choices)[N]) {
  return choices[random.integer(0, N - 1)];
}

// Lengths near the tile sizes in use (multiples of 8 to 64), short ones most often.
int64_t length(Random& random, int scale) {
  constexpr int64_t kEdges[] = {1, 8, 16, 32, 48, 64, 96, 128};
  if (random.chance(0.04)) return 0;
  if (random.chance(0.5)) return random.integer(1, 40);
  return std::max<int64_t>(1, kEdges[random.integer(0, 7)] + random.integer(-1, 1)) *
         random.integer(1, scale);
}

int64_t head_dim(Random& random) {
  constexpr int64_t kCommon[] = {8, 16, 32, 64, 80, 128};
  if (random.chance(0.03)) return random.integer(129, 576);
  return random.chance(0.5) ? kCommon[random.integer(0, 5)] : random.integer(1, 72);
}

std::vector<int64_t> per_sequence(Random& random, int64_t batch, int64_t low, int64_t high) {
  std::vector<int64_t> list;
  for (int64_t b = 0; b < batch; ++b) list.push_back(random.integer(low, high));
  return list;
}

std::string score_shape(Random& random) {
  std::string shape = "bhqk";
  for (char& letter : shape) {
    if (random.chance(0.4)) letter = '1';
  }
  return shape;
}

}  // namespace

std::string random_case(uint64_t seed, int scale) {
  Random random(Random(seed).bits());
  Line line;
  line.add("name", "random_" + std::to_string(seed));
  const int64_t heads_kv = random.integer(1, 3), group = random.chance(0.5) ? 1 : random.integer(2, 4);
  line.add("heads_q", heads_kv * group);
  line.add("heads_kv", heads_kv);
  const int64_t dim = head_dim(random);
  line.add("head_dim", dim);
  if (random.chance(0.4)) line.add("head_dim_v", head_dim(random));

  int64_t batch = random.chance(0.03) ? 0 : random.integer(1, 3);
  int64_t longest_q = length(random, scale);
  int64_t longest_kv = random.chance(0.4) ? longest_q : length(random, scale);
  const bool packed = batch > 0 && random.chance(0.25);
  if (packed) {
    std::vector<int64_t> cu_q{0}, cu_kv{0};
    for (int64_t b = 0; b < batch; ++b) {
      cu_q.push_back(cu_q.back() + random.integer(0, std::max<int64_t>(1, longest_q)));
      cu_kv.push_back(cu_kv.back() + random.integer(0, std::max<int64_t>(1, longest_kv)));
    }
    longest_q = longest_kv = 0;
    for (size_t n = 1; n < cu_q.size(); ++n) {
      longest_q = std::max(longest_q, cu_q[n] - cu_q[n - 1]);
      longest_kv = std::max(longest_kv, cu_kv[n] - cu_kv[n - 1]);
    }
    line.add("cu_seqlens_q", join(cu_q));
    line.add("cu_seqlens_kv", join(cu_kv));
    if (random.chance(0.3)) line.add("cu_dtype", "i64");
    if (random.chance(0.3)) line.add("total_q", cu_q.back() + random.integer(1, 4));
    if (random.chance(0.3)) line.add("total_kv", cu_kv.back() + random.integer(1, 4));
  } else {
    line.add("batch", batch);
    line.add("seqlen_q", longest_q);
    line.add("seqlen_kv", longest_kv);
  }
  if (batch > 0) {
    // Of a paged cache nothing is clamped.
    const bool paged = !packed && random.chance(0.2);
    if (paged) line.add("page_size", pick(random, {"1", "3", "16", "64"}));
    if (paged && random.chance(0.5)) line.add("pages", pick(random, {"reversed", "shared"}));
    const bool shorter = random.chance(0.25);
    if (shorter)
      line.add("kv_lengths",
               join(per_sequence(random, batch, paged ? 0 : -1, paged ? longest_kv : longest_kv + 2)));
    if (random.chance(0.15) && !(paged && shorter))
      line.add("kv_starts", join(per_sequence(random, batch, paged ? 0 : -1, longest_kv)));
    if (!packed && !paged && random.chance(0.1))
      line.add("cache_batch_idx", join(per_sequence(random, batch, 0, 4)));
    if (random.chance(0.2)) line.add("q_lengths", join(per_sequence(random, batch, -1, longest_q + 1)));
  }

  if (random.chance(0.45)) line.add("causal", random.chance(0.6) ? "bottom-right" : "top-left");
  if (random.chance(0.3)) {
    line.add("window", join({random.chance(0.2) ? -1 : random.integer(0, 40),
                             random.chance(0.2) ? -1 : random.integer(0, 40)}));
  }
  if (random.chance(0.15)) {  // one number is the value for all
    line.add("q_offset",
             join(per_sequence(random, random.chance(0.5) ? 1 : std::max<int64_t>(1, batch), -20, 40)));
  }
  if (random.chance(0.2)) line.add("softmax_scale", pick(random, {"0", "0.05", "-0.2", "1", "0.3"}));
  if (random.chance(0.2)) line.add("softcap", pick(random, {"0.5", "5", "30"}));
  if (random.chance(0.25)) {
    line.add("bias",
             score_shape(random) + ":" + pick(random, {"random", "neginf:0.3", "lowest:0.3", "qk:0.1"}));
    if (random.chance(0.4)) line.add("bias_dtype", pick(random, {"f16", "bf16"}));
    if (random.chance(0.3)) line.add("layout.bias", "padded");
  }
  if (random.chance(0.25)) {
    line.add(random.chance(0.4) ? "mask_bits" : "mask",
             score_shape(random) + ":" + pick(random, {"random:0.7", "random:0.1", "close_row:0", "band:9"}));
    if (random.chance(0.3)) line.add("layout.mask", "padded");
  }
  if (random.chance(0.15)) line.add("segments", pick(random, {"sorted:3", "random:3", "sorted:7"}));
  if (random.chance(0.15)) line.add("kv_ranges", pick(random, {"random", "prefix:5", "images:7"}));
  if (random.chance(0.15)) line.add("alibi", random.chance(0.5) ? "h" : "bh");
  if (random.chance(0.2)) line.add("sinks", "random");
  const bool dropout = random.chance(0.15);
  if (dropout) {
    line.add("dropout", pick(random, {"0.1", "0.5", "0.9"}));
    line.add("dropout_seed", random.integer(0, 1 << 30));
    line.add("dropout_offset", random.integer(0, 1 << 20));
  }
  if (random.chance(0.15)) line.add("lse", 0);
  if (random.chance(0.3)) line.add("dlse", 1);
  if (random.chance(0.2)) line.add("delta", 1);
  if (random.chance(0.1)) line.add("wants", pick(random, {"dq", "dk,dv", "dv", "dq,dbias,dsinks", "dk"}));
  if (random.chance(0.15)) line.add("dtype_o", "f32");
  if (random.chance(0.25)) {
    line.add("dtype_grad", "f32");
    if (random.chance(0.4)) line.add("accumulate", 1);
  }
  if (random.chance(0.2)) line.add("deterministic", 1);
  if (random.chance(0.1)) line.add("batch_invariant", 1);
  if (random.chance(0.25))
    line.add("inputs", pick(random, {"wide:3", "logits:90:100", "logits:-100:-90", "ones"}));
  for (const char* tensor : {"q", "k", "v", "o", "dout", "dq", "dk", "dv"}) {
    if (random.chance(0.25)) {
      line.add("layout." + std::string(tensor),
               pick(random, {"bhsd", "sliced", "apart", "qkv", "seqfirst", "offset1"}));
    }
  }
  if (!dropout && random.chance(0.15)) {  // a quantised cache, of which rows with dropout know nothing
    line.add("dtype_kv", pick(random, {"i8", "f8e4m3"}));
    if (random.chance(0.5)) line.add("scale_rows", pick(random, {"1", "7", "16", "100"}));
    if (random.chance(0.3)) line.add("layout.k_scales", "padded");
  }
  return line.text();
}

}  // namespace tilewise
